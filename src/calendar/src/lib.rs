//! The calendar: dates and times in UTC, to and from Unix time.
//!
//! Pure: it reads no clock and knows no time zone. Unix time has no leap seconds, so a day has
//! 86,400 seconds here too. Dates before 1970 are negative and are handled like all others.

pub mod duration;

use std::time::Duration;

const DAY_SECONDS: i64 = 86_400;
/// Days of 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;
/// Days from the 1st of March of the year 0 to the 1st of January 1970.
const EPOCH_DAYS: i64 = 719_468;

/// A date and time in UTC, to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DateTime {
    /// 1 BC is 0, the year before it -1.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    /// 0 to 23.
    pub hour: i64,
    /// 0 to 59.
    pub minute: i64,
    /// 0 to 59.
    pub second: i64,
}

impl DateTime {
    /// The date and time at so many seconds since 1970.
    pub fn from_unix(seconds: i64) -> Self {
        let (year, month, day) = date_of(seconds.div_euclid(DAY_SECONDS));
        let second = seconds.rem_euclid(DAY_SECONDS);
        Self {
            year,
            month,
            day,
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// Seconds since 1970; `None` if there is no such date or time, or if its year has more than
    /// six digits.
    pub fn to_unix(self) -> Option<i64> {
        let Self { year, month, day, hour, minute, second } = self;
        let is_time = (0..24).contains(&hour) && (0..60).contains(&minute);
        if year.abs() > 999_999 || !is_time || !(0..60).contains(&second) {
            return None;
        }
        if !(1..=12).contains(&month) {
            return None;
        }
        let days = days_of(year, month, day);
        // A date that does not exist gets the day number of another date.
        let exists = date_of(days) == (year, month, day);
        exists.then_some(days * DAY_SECONDS + hour * 3_600 + minute * 60 + second)
    }

    /// `20260102T030405`: for names of files.
    pub fn compact(self) -> String {
        let Self { year, month, day, hour, minute, second } = self;
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
    }

    /// RFC 3339 without a fraction: `2026-01-02T03:04:05Z`.
    pub fn rfc3339(self) -> String {
        format!("{}Z", self.local_part())
    }

    fn local_part(self) -> String {
        let Self { year, month, day, hour, minute, second } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

/// Milliseconds since 1970 as RFC 3339; the milliseconds are left out where they are 0:
/// `2026-01-02T03:04:05.250Z`, `2026-01-02T03:04:05Z`.
pub fn rfc3339_ms(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1_000).expect("a thousandth of a u64 is below an i64");
    let at = DateTime::from_unix(seconds);
    match ms % 1_000 {
        0 => at.rfc3339(),
        rest => format!("{}.{rest:03}Z", at.local_part()),
    }
}

/// Seconds since 1970 of a time in RFC 3339 and UTC, like `2026-11-21T12:15:10.5Z`. Parts of a
/// second are left out. `None` if the text is no such time.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, separator| -> Option<Vec<i64>> {
        text.split(separator).map(|part| part.parse().ok()).collect()
    };
    let [year, month, day] = numbers(date, '-')?[..] else { return None };
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?[..] else { return None };
    DateTime { year, month, day, hour, minute, second }.to_unix()
}

/// Year, month and day of a day since 1970 (`civil_from_days` of Howard Hinnant's
/// "chrono-Compatible Low-Level Date Algorithms", which counts years from March).
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + EPOCH_DAYS;
    let era = shifted.div_euclid(ERA_DAYS);
    let day_of_era = shifted.rem_euclid(ERA_DAYS);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`date_of`] (`days_from_civil`). For a date that does not exist, the number of
/// some other day.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9).rem_euclid(12);
    let day_of_year = (153 * month_from_march + 2) / 5 + day.clamp(1, 31) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - EPOCH_DAYS
}

/// A duration as Go prints it: `24h0m0s`, `1m30s`, `1.5s`, `250ms`.
pub fn go_duration(ms: u64) -> String {
    if ms < 1_000 {
        return if ms == 0 { "0s".to_owned() } else { format!("{ms}ms") };
    }
    let (seconds, rest) = (ms / 1_000, ms % 1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    let seconds = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// A Go duration without a sign: `300ms`, `1.5h`, `2h45m`, `0`.
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    let nanoseconds = duration::parse(text).ok().filter(|_| !text.starts_with(['+', '-']))?;
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: i64, expected: &str) {
        assert_eq!(DateTime::from_unix(seconds).rfc3339(), expected);
        assert_eq!(parse_rfc3339(expected), Some(seconds), "{expected}");
    }

    #[test]
    fn known_times_print_and_parse() {
        check(0, "1970-01-01T00:00:00Z");
        check(-1, "1969-12-31T23:59:59Z");
        check(951_782_399, "2000-02-28T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(951_868_800, "2000-03-01T00:00:00Z");
        check(1_735_689_599, "2024-12-31T23:59:59Z");
        check(4_107_542_399, "2100-02-28T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
        check(253_402_300_799, "9999-12-31T23:59:59Z");
        check(-2_208_988_800, "1900-01-01T00:00:00Z");
        check(-62_135_596_800, "0001-01-01T00:00:00Z");
        assert_eq!(DateTime::from_unix(951_782_400).compact(), "20000229T000000");
        assert_eq!(rfc3339_ms(1), "1970-01-01T00:00:00.001Z");
        assert_eq!(rfc3339_ms(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(rfc3339_ms(u64::MAX), "584556019-04-03T14:25:51.615Z");
    }

    #[test]
    fn every_day_of_two_eras_follows_the_one_before_it_and_is_found_again() {
        let mut before = date_of(-ERA_DAYS - 1);
        for number in -ERA_DAYS..=ERA_DAYS {
            let date = date_of(number);
            assert!(date > before, "{date:?} comes after {before:?}");
            assert_eq!(days_of(date.0, date.1, date.2), number);
            before = date;
        }
    }

    #[test]
    fn a_bad_time_is_refused() {
        for bad in [
            "",
            "yesterday",
            "2025-13-01T00:00:00Z",
            "2025-00-01T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2025-04-31T00:00:00Z",
            "2025-01-00T00:00:00Z",
            "2025-01-99T00:00:00Z",
            "2025-01-01T24:00:00Z",
            "2025-01-01T00:60:00Z",
            "2025-01-01T00:00:60Z",
            "2025-01-01T00:00Z",
            "2025-01-01T00:00:00",
            "2025-01-01T00:00:00+01:00",
            "9223372036854775807-01-01T00:00:00Z",
            "2025-9223372036854775807-01T00:00:00Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
        assert_eq!(parse_rfc3339("2000-02-29T00:00:01.25Z"), Some(951_782_401));
    }

    #[test]
    fn durations_print_as_in_go() {
        for (ms, text) in [
            (0, "0s"),
            (250, "250ms"),
            (1_500, "1.5s"),
            (90_000, "1m30s"),
            (86_400_000, "24h0m0s"),
            (3_600_050, "1h0m0.05s"),
        ] {
            assert_eq!(go_duration(ms), text);
        }
    }

    #[test]
    fn durations_parse_as_in_go() {
        for (text, expected_ms) in [
            ("0", Some(0)),
            ("300ms", Some(300)),
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1_500)),
            ("", None),
            ("5", None),
            ("-1s", None),
            ("m", None),
            ("1d", None),
            ("99999999999999999999h", None),
        ] {
            let expected = expected_ms.map(Duration::from_millis);
            assert_eq!(parse_go_duration(text), expected, "{text}");
        }
    }
}
