//! Times and durations as Nomad writes them: RFC 3339 text, nanoseconds, and Go's durations (`1h30m`).

use std::time::Duration;

/// Go's zero time.
pub(crate) const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

const DAY_MS: u64 = 86_400_000;

/// Milliseconds as nanoseconds.
pub(crate) fn nanoseconds(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// Milliseconds since the Unix epoch as RFC 3339 text; 0 is Go's zero time.
pub(crate) fn rfc3339(ms: u64) -> String {
    if ms == 0 {
        return ZERO_TIME.to_owned();
    }
    let (year, month, day) = civil(ms / DAY_MS);
    let seconds = ms % DAY_MS / 1_000;
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let fraction = match ms % 1_000 {
        0 => String::new(),
        rest => format!(".{rest:03}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Year, month and day of a day since the Unix epoch, in the proleptic Gregorian calendar (the era arithmetic of Howard Hinnant's
/// `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// A Go duration without a sign: `300ms`, `1.5h`, `2h45m`, `0`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() || text.len() > 64 {
        return None;
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        let part = Duration::try_from_secs_f64(number * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_rfc3339() {
        for (ms, expected) in [
            (0, ZERO_TIME),
            (1, "1970-01-01T00:00:00.001Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (951_868_800_000, "2000-03-01T00:00:00Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(ms), expected);
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
            assert_eq!(duration(text), expected, "{text}");
        }
    }
}
