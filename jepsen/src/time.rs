//! Times in names of files.

use std::time::{SystemTime, UNIX_EPOCH};

use calendar::DateTime;

/// UTC as `YYYYmmddTHHMMSS`; a time before 1970 is 1970.
pub(crate) fn timestamp(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    DateTime::from_unix(i64::try_from(seconds).unwrap_or(i64::MAX)).compact()
}
