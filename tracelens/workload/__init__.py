"""The bundled reference workload: a DeepSeek-style Mixture-of-Experts model, trained, profiled and recorded.

What a run is made of is in `tracelens.planner.config`, and what it must come to in
`tracelens.planner.expected`; both need nothing but the standard library. Everything here needs torch (`pip install 'tracelens[workload]'`), so
importing this package imports none of it. Begin with `model`.
"""
