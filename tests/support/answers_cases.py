# SPDX-License-Identifier: Apache-2.0
"""Error of a client as Ray and Flower report it."""

from __future__ import annotations

RAY = (
    "<class 'flwr.clientapp.client_app.ClientAppException'>:<'\x1b[36mray::ClientAppActor.run()"
    "\x1b[39m (pid=3751, ip=10.0.0.7, actor_id=0b5c, repr=<flwr.ClientAppActor object at 0x7f>)\n"
    + '  File "/x/client_app.py", line 118, in __call__\n    return self._call(message)\n'
    * 9
    + '  File "/x/app.py", line 7, in train\n    raise RuntimeError("out of battery")\n'
    "RuntimeError: out of battery\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=3751, ip=10.0.0.7)\n"
    '  File "/x/ray_actor.py", line 65, in run\n    raise ClientAppException(str(ex)) from ex\n'
    "flwr.clientapp.client_app.ClientAppException: \n"
    "Exception ClientAppException occurred. Message: out of battery'>"
)
