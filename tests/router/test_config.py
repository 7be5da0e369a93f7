from tanbr.lab.settings import parse, with_options
from tanbr.router.config import RouterConfig


def test_what_the_user_has_set_stays():
    config = RouterConfig.model_validate({"default": {"noise": 0.1, "beta": 3.0, "opening": 7}})
    chosen = config.of_requests((1, 0)).default
    assert (chosen.noise, chosen.beta, chosen.opening) == (0.1, 3.0, 7)
    assert chosen.own_experts == (1, 0)


def test_what_nobody_has_set_follows_from_what_is_known():
    chosen = RouterConfig().of_requests((1, 0)).default
    assert (chosen.noise, chosen.beta, chosen.opening) == (chosen.request_noise, 0.5, 1)
    assert chosen.baseline == "proportional"
    assert RouterConfig().of_requests().default.baseline == "even"
    assert RouterConfig().default.baseline == "none"


def test_options_of_the_command_line_set_nothing_else():
    config = with_options(parse({"router": {"default": {"beta": 3.0}}}), serve={"seed": 1})
    assert config.serve.seed == 1
    chosen = config.router.of_requests((0,)).default
    assert (chosen.beta, chosen.noise) == (3.0, chosen.request_noise)
