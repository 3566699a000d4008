//! Quorate.
