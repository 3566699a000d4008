//! Calendar arithmetic: UTC to text, and the time in an answer to seconds.
//!
//! Pure. Days are counted with Hinnant's `civil_from_days` and its inverse, for days after 1970.

use std::time::{SystemTime, UNIX_EPOCH};

/// UTC as `YYYYmmddTHHMMSS`.
pub(crate) fn timestamp(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
}

/// Seconds since 1970 of a time like `2026-11-21T12:15:10.5Z`; parts of a second are left out.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, separator| -> Option<Vec<u64>> {
        text.split(separator).map(|part| part.parse().ok()).collect()
    };
    let [year, month @ 1..=12, day] = numbers(date, '-')?[..] else { return None };
    let [hour, minute, second] = numbers(time.split('.').next()?, ':')?[..] else { return None };
    Some(days(year, month, day)? * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// Days from 1970 to a date; `None` before it.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_are_civil() {
        let check = |seconds, expected: &str| {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        };
        check(0, "19700101T000000");
        check(951_782_399, "20000228T235959");
        check(951_782_400, "20000229T000000");
        check(1_767_225_599, "20251231T235959");
        check(4_107_542_400, "21000301T000000");
    }

    #[test]
    fn times_of_answers_are_read() {
        assert_eq!(parse_rfc3339("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_rfc3339("2000-02-29T00:00:01.25Z"), Some(951_782_401));
        assert_eq!(parse_rfc3339("2025-12-31T23:59:59Z"), Some(1_767_225_599));
        for bad in ["yesterday", "2025-13-01T00:00:00Z", "2025-01-01T00:00Z", "2025-01-01T00:00:00"]
        {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
        for number in 0..60_000 {
            let (year, month, day) = civil(number);
            assert_eq!(days(year, month, day), Some(number));
        }
    }
}
