"""Many ranks: each file is read and analyzed where there is room for it, and only tables come back.

    start.py   chooses where
    task.py    what is done with one file
    local.py   in processes of this machine
    dask.py    on the workers of a Dask cluster
    whole.py   from the tables of all ranks to results
    aside.py   one large trace: its slowest analyzer beside the others

No process holds more than one trace at a time.
"""
