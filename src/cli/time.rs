//! Times and durations as people write and read them.
//!
//! API times are nanoseconds since 1970, API durations nanoseconds. Must never use local time:
//! output is in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use calendar::DateTime;

const NANOSECONDS: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Nanoseconds since 1970 of a clock reading.
pub(crate) fn nanoseconds(now: SystemTime) -> i64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// `2026-01-02T03:04:05Z`, or `N/A` for 0.
pub(crate) fn timestamp(nanoseconds: i64) -> String {
    if nanoseconds == 0 {
        return "N/A".to_owned();
    }
    let seconds = nanoseconds.div_euclid(NANOSECONDS);
    DateTime::from_unix(seconds).rfc3339()
}

/// `5m3s ago`, or `N/A` for 0.
pub(crate) fn ago(now_nanoseconds: i64, then_nanoseconds: i64) -> String {
    if then_nanoseconds == 0 {
        return "N/A".to_owned();
    }
    let seconds = (now_nanoseconds - then_nanoseconds).max(0) / NANOSECONDS;
    format!("{} ago", span(seconds))
}

/// The two largest units of a span: `1d4h`, `5m3s`, `12s`.
pub(crate) fn span(seconds: i64) -> String {
    let units = [(DAY_SECONDS, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
    let Some(first) = units.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut text = String::new();
    for (size, letter) in units.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            text.push_str(&count.to_string());
            text.push(*letter);
        }
    }
    text
}

/// Reads `90s`, `1h30m`, `250ms`, `2d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse =
        || format!("\"{text}\" is not a duration; write for example 30s, 10m, 1h30m or 2d");
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(refuse());
    }
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(refuse)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, remainder) = after.split_at(letters);
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(refuse()),
        };
        let part_ms = number.checked_mul(unit_ms).ok_or_else(refuse)?;
        total = total.checked_add(Duration::from_millis(part_ms)).ok_or_else(refuse)?;
        rest = remainder;
    }
    Ok(total)
}

/// Nanoseconds of an answer, for sums with others.
pub(crate) fn signed(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ago, parse_duration, span, timestamp};

    #[test]
    fn timestamps_are_utc() {
        assert_eq!(timestamp(0), "N/A");
        assert_eq!(timestamp(1_000_000_000), "1970-01-01T00:00:01Z");
        assert_eq!(timestamp(951_782_400_000_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_772_323_199_000_000_000), "2026-02-28T23:59:59Z");
        assert_eq!(timestamp(1_772_323_200_000_000_000), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn spans_show_two_units() {
        assert_eq!(span(0), "0s");
        assert_eq!(span(59), "59s");
        assert_eq!(span(60), "1m");
        assert_eq!(span(3_723), "1h2m");
        assert_eq!(span(100_000), "1d3h");
        assert_eq!(ago(10_000_000_000, 5_000_000_000), "5s ago");
        assert_eq!(ago(1, 5_000_000_000), "0s ago");
        assert_eq!(ago(1, 0), "N/A");
    }

    #[test]
    fn durations_parse() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_mins(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2d"), Ok(Duration::from_hours(48)));
        for bad in ["", "5", "h", "1x", "-1s", "1h-", "99999999999999999999s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
