//! Data that a binary of another generation wrote. It is not damaged: the code that opens it
//! refuses, and leaves every name as it is, so that the binary that wrote it finds everything where
//! it was.

use std::io;

use fsm::{codec::DecodeError, generation::WHAT_TO_DO, state::LoadError};

#[derive(Debug, thiserror::Error)]
#[error("{0}: {WHAT_TO_DO}")]
struct Refusal(String);

/// The error of an open that finds such data.
pub(super) fn refusal(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, Refusal(what.to_owned()))
}

/// Whether an open failed for that reason.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(inner) if inner.is::<Refusal>())
}

/// What is wrong with a frame, if it is of another generation.
pub(super) fn of_frame(error: &DecodeError) -> Option<String> {
    match error {
        DecodeError::Generation { .. } => Some(error.to_string()),
        DecodeError::NotAFrame(_)
        | DecodeError::Kind { .. }
        | DecodeError::Length { .. }
        | DecodeError::Checksum { .. }
        | DecodeError::Payload { .. } => None,
    }
}

/// What is wrong with a row, if it is of another generation. A table that this binary does not have
/// was written by a binary that should have raised the generation.
pub(super) fn of_row(error: &LoadError) -> Option<String> {
    match error {
        LoadError::UnknownTable(_) => Some(error.to_string()),
        LoadError::Row { source, .. } => of_frame(source),
    }
}
