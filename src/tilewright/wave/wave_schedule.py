"""Wave's module of manual schedules: out of scope, and it says so when it is used."""

from tilewright.wave.scope import out_of_scope

wave_schedule = out_of_scope("wave_schedule.wave_schedule")
