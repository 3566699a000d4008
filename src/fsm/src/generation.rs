//! The generation of the byte formats: one number for all data that outlives a process or travels
//! between two processes. This is the log, the state on disk, snapshot files, the agent's files and
//! the messages.
//!
//! A binary reads and speaks its own generation only. It refuses data and callers of another
//! generation, and says what to do about it.

use serde::Deserialize;

/// The generation of this binary: the number in the first line of `golden/frames.txt`. The test
/// that pins the bytes of every row, command and reply there raises it when they change. Other
/// bytes that outlive a process (log segments, the agent's files, messages) raise it by hand.
/// Nothing is converted.
pub const GENERATION: u16 = first_number(include_bytes!("../golden/frames.txt"));

/// The number after the first space of a text.
const fn first_number(text: &[u8]) -> u16 {
    let (mut rest, mut number, mut is_in_word) = (text, 0_u16, true);
    while let [byte, more @ ..] = rest {
        match (*byte, is_in_word) {
            (b' ', true) => is_in_word = false,
            (b'0'..=b'9', false) => {
                // A digit's low bits are its value.
                number = number.saturating_mul(10).saturating_add((*byte & 0x0f) as u16);
            }
            (_, true) => {}
            (_, false) => break,
        }
        rest = more;
    }
    assert!(number > 0, "golden/frames.txt begins with `generation` and its number");
    number
}

/// What to do about a server's data of another generation.
pub const WHAT_TO_DO: &str =
    "start the binary that wrote it, or move the data directory away and let the server rejoin";

/// The generation of data that names none.
const FIRST: u32 = 1;

/// Found data of another generation than [`GENERATION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("of generation {0}, this binary reads generation {GENERATION}")]
pub struct OtherGeneration(pub u32);

/// Checks the generation of data or of a caller.
pub fn check(found: u32) -> Result<(), OtherGeneration> {
    if found == u32::from(GENERATION) { Ok(()) } else { Err(OtherGeneration(found)) }
}

/// The generation field of a JSON file; read before the rest of the file.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Stamp {
    #[serde(default = "first")]
    generation: u32,
}

fn first() -> u32 {
    FIRST
}

impl Stamp {
    /// Checks the generation of the file.
    pub fn check(self) -> Result<(), OtherGeneration> {
        check(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_generation_is_taken_and_the_refusal_names_both() {
        assert_eq!(check(u32::from(GENERATION)), Ok(()));
        for other in [0, 1, u32::from(GENERATION) + 1, u32::MAX] {
            assert_eq!(check(other), Err(OtherGeneration(other)));
        }
        let text = OtherGeneration(1).to_string();
        assert_eq!(text, format!("of generation 1, this binary reads generation {GENERATION}"));
    }
}
