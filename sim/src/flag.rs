//! The values of flags. bpaf's errors quote a bad value; these add which flag it was for.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

/// Seeds that may run at a time.
pub(crate) const JOBS: RangeInclusive<u8> = 1..=64;

/// Reads the value of this flag.
pub(crate) fn value<T>(name: &'static str) -> impl Fn(String) -> Result<T, String>
where
    T: FromStr<Err: Display>,
{
    move |text| text.parse().map_err(|error| format!("--{name}: {error}"))
}

/// Reads a list whose elements are separated by commas.
pub(crate) fn list<T>(name: &'static str) -> impl Fn(String) -> Result<Vec<T>, String>
where
    T: FromStr<Err: Display>,
{
    let element = value(name);
    move |text| text.split(',').map(|part| element(part.to_owned())).collect()
}

/// Reads a number that must be in this range.
pub(crate) fn within(
    name: &'static str,
    range: RangeInclusive<u8>,
) -> impl Fn(String) -> Result<u8, String> {
    move |text| {
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            format!("--{name}: it must be a number from {} to {}", range.start(), range.end())
        })
    }
}
