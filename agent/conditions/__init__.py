"""The conditions that bcd finds itself (SPEC A6): rows of a type and a pure function from facts to verdicts.

    facts.py       what is read, and read as seldom as it may be
    table.py       the rows, and what each of them says of the facts
    reboot.py      RebootRequired: what a reboot would change
    external.py    what is asked of others: MPS, the kubelet, another manager of the host
    declared.py    conditions that another component declares in `data_dir/conditions.d/`
    watch.py       the daemon's part: asks, judges, keeps `since`

One more condition costs a row in table.py, its function and, for a new fact, a field of Facts.
"""
