//! Data that another version of this program wrote. It is no damage: whoever opens it refuses, and leaves every name as it is, so that the version
//! that wrote it finds everything where it was.

use std::io;

use fsm::{codec::DecodeError, state::LoadError};

#[derive(Debug, thiserror::Error)]
#[error("{0}; start the version that wrote it")]
struct OtherVersion(String);

/// The error of an open that finds such data.
pub(super) fn refusal(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, OtherVersion(what.to_owned()))
}

/// Whether an open failed for that reason.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(inner) if inner.is::<OtherVersion>())
}

/// What is wrong with a frame, if it is of another version.
pub(super) fn of_frame(error: &DecodeError) -> Option<String> {
    match error {
        DecodeError::Version { .. } => Some(error.to_string()),
        DecodeError::NotAFrame(_)
        | DecodeError::Kind { .. }
        | DecodeError::Length { .. }
        | DecodeError::Checksum { .. }
        | DecodeError::Payload { .. } => None,
    }
}

/// What is wrong with a row, if it is of another version.
pub(super) fn of_row(error: &LoadError) -> Option<String> {
    match error {
        LoadError::UnknownTable(_) => Some(error.to_string()),
        LoadError::Row { source, .. } => of_frame(source),
    }
}
