"""The bundled reference workload: a DeepSeek-style Mixture-of-Experts model, trained, profiled and recorded.

What a run is made of needs nothing but the standard library: `config`, `models`, `layout`, `toggles`, and
`expected`, the FLOPs and bytes that it comes to. Everything else needs torch (`pip install
'tracelens[workload]'`), so importing this package imports none of it. Begin with `model`.
"""
