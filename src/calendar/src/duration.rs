//! Durations as people write them (`1h30m`, `250ms`) in nanoseconds, the unit of the API. Owns the
//! grammar of Go's `time.ParseDuration`; never rounds.

/// Nanoseconds in a unit.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits that are read before a text is called too long.
const DIGITS_MAX: usize = 19;

/// Parses `30s`, `1h30m`, `1.5h`, `-1s`, `0`.
pub fn parse(text: &str) -> Result<i64, String> {
    let bad = || {
        format!(
            "\"{}\" is not a duration: write a number with a unit, for example \"30s\", \"1h30m\" or \"250ms\"",
            text.chars().take(64).collect::<String>()
        )
    };
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = 0i128;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        total += scaled(number, *scale).ok_or_else(bad)?;
        rest = tail;
    }
    let total = if negative { -total } else { total };
    i64::try_from(total).map_err(|_| bad())
}

/// `number` × `scale`, where the number may have a fraction.
fn scaled(number: &str, scale: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let too_long = whole.len() > DIGITS_MAX || fraction.len() > DIGITS_MAX;
    if too_long || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
    let divisor = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits(whole)? * scale + digits(fraction)? * scale / divisor)
}

/// Milliseconds as people read them: `1h30m`, `250ms`.
pub fn show_ms(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let parts = [
        (ms / 3_600_000, "h"),
        (ms / 60_000 % 60, "m"),
        (ms / 1_000 % 60, "s"),
        (ms % 1_000, "ms"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    parts.flat_map(|(count, unit)| [count.to_string(), (*unit).to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_in_go() {
        for (text, expected) in [
            ("30s", 30_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("250ms", 250_000_000),
            ("3µs", 3_000),
            ("0", 0),
            ("-2s", -2_000_000_000),
            ("+2s", 2_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for bad in
            ["", "s", "30", "30x", "1h30", ".s", "--1s", "99999999999999999999h", "1..5s", "١s"]
        {
            assert!(parse(bad).is_err(), "{bad} should not parse");
        }
    }

    #[test]
    fn milliseconds_are_shown_in_units() {
        assert_eq!(show_ms(5_430_250), "1h30m30s250ms");
        assert_eq!(show_ms(0), "0s");
    }
}
