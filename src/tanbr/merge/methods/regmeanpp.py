"""RegMean++: merging by regression on what experts see behind layers that are merged already.

In a merged model an expert's layer gets its input from merged layers, and not from the expert's own. So the Gram
matrices are measured layer after layer: below it everything is merged, by regression and evenly.

Nguyen et al., RegMean++: Enhancing Effectiveness and Generalization of Regression Mean for Model Merging, 2025. They
are measured once, below the even blend, and serve every blend.
"""

from dataclasses import dataclass
from typing import ClassVar

from tanbr.merge.gram_matrices import FOLDER_MERGED
from tanbr.merge.methods.regression import Regression


@dataclass(eq=False)
class RegMeanPlusPlus(Regression):
    """Regression on what each expert sees behind merged layers."""

    name = "regmeanpp"
    needs = "Gram matrices of what the experts see behind merged layers: `tanbr grams CHECKPOINT --merged`"
    folder: ClassVar[str] = FOLDER_MERGED
