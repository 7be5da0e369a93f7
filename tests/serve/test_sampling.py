from tanbr.serve.sampling import WritingOptions


def test_every_answer_has_a_seed_of_its_own_that_other_prompts_do_not_change() -> None:
    asked = WritingOptions(temperature=0.5, top_p=0.9, seed=4, n=3)
    alone, two = asked.samplings(1, chance=1), asked.samplings(2, chance=2)
    assert two == alone * 2
    assert len({one.seed for one in alone if one is not None}) == 3
    assert WritingOptions(temperature=0.5, top_p=0.9, seed=4).samplings(1, chance=3) == alone[:1]
    assert {(one.temperature, one.top_p) for one in alone if one is not None} == {(0.5, 0.9)}
    chance = WritingOptions(temperature=0.5, n=3).samplings(2, chance=1)
    assert len({one.seed for one in chance if one is not None}) == 6
    assert WritingOptions(n=3).samplings(2, chance=1) == (None,) * 6
    huge = WritingOptions(temperature=1.0, seed=10**30).samplings(1, chance=1)  # any number will do
    assert huge == WritingOptions(temperature=1.0, seed=10**30).samplings(1, chance=2) != alone
