//! The machine's users.

use std::{fs, io};

/// User and group id of a user, by name or number.
pub(crate) fn find_user(name: &str) -> io::Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd")?;
    let found = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let matches = fields.first() == Some(&name) || fields.get(2) == Some(&name);
        matches.then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("unknown user `{name}`")))
}
