//! Times and durations as Nomad writes them: RFC 3339 text, nanoseconds, and Go's durations (`1h30m`).

use std::time::Duration;

/// Go's zero time.
pub(crate) const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Milliseconds as nanoseconds.
pub(crate) fn nanoseconds(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// Milliseconds since the Unix epoch as RFC 3339 text; 0 is Go's zero time.
pub(crate) fn rfc3339(ms: u64) -> String {
    if ms == 0 {
        return ZERO_TIME.to_owned();
    }
    calendar::rfc3339_ms(ms)
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
    fn times_print_as_rfc3339_and_none_as_the_zero_time_of_go() {
        assert_eq!(rfc3339(0), ZERO_TIME);
        assert_eq!(rfc3339(1), "1970-01-01T00:00:00.001Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
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
