//! Times as Nomad writes them: RFC 3339 text and nanoseconds.

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

/// The same, but for fields in which Nomad has null for a time that has not come.
pub(crate) fn rfc3339_or_null(ms: u64) -> Option<String> {
    (ms != 0).then(|| rfc3339(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_rfc3339_and_none_as_the_zero_time_of_go() {
        assert_eq!(rfc3339(0), ZERO_TIME);
        assert_eq!((rfc3339_or_null(0), rfc3339_or_null(1)), (None, Some(rfc3339(1))));
        assert_eq!(rfc3339(1), "1970-01-01T00:00:00.001Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00Z");
    }
}
