"""The bundled reference workload: a small Mixture-of-Experts model that is trained, profiled and recorded.

`config` needs nothing but the standard library; every other module needs torch (`pip install
'tracelens[workload]'`), so importing this package imports none of them.
"""
