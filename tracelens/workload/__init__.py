"""The bundled reference workload: a DeepSeek-style Mixture-of-Experts model, trained, profiled and recorded.

What a run is made of is in `tracelens.planner.config`, and what it must come to in
`tracelens.planner.expected`; both need nothing but the standard library. Most modules here need torch
(`pip install 'tracelens-moe[workload]'`); importing the package does not. Begin with `model`.
"""

from tracelens.workload.ladder import LadderRung, bundled, chosen_rungs, from_file, from_texts, plan_ladder
