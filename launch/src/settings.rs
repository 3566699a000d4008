//! Configuration files of servers and agents.

use std::{fmt::Display, fs, io, net::SocketAddr, path::Path};

use toml::Value;

/// The lines of a configuration file: `section.key = value`, each key once.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<(String, String)>,
    /// Arrays of tables: a name, and the keys of one table.
    tables: Vec<(String, Settings)>,
}

impl Settings {
    /// The file of a server that listens on these addresses.
    pub fn server(name: &str, http: SocketAddr, rpc: SocketAddr) -> Self {
        let mut settings = Self::default();
        settings.set_text("name", name);
        settings.set_text("http.address", &http.to_string());
        settings.set_text("rpc.address", &rpc.to_string());
        settings
    }

    /// The file of an agent that connects to these servers and listens on any free port.
    pub fn agent(name: &str, servers: &[SocketAddr]) -> Self {
        let mut settings = Self::default();
        settings.set_text("name", name);
        settings.set_texts("servers", servers);
        settings.set_text("http.address", "127.0.0.1:0");
        settings
    }

    /// Sets a key, `section.key`, to a value in TOML.
    pub fn set(&mut self, key: &str, value: impl Display) {
        self.lines.retain(|(known, _)| known != key);
        self.lines.push((key.to_owned(), value.to_string()));
    }

    /// Sets a key to a text.
    pub fn set_text(&mut self, key: &str, text: &str) {
        self.set(key, Value::String(text.to_owned()));
    }

    /// Sets a key to a list of texts.
    pub fn set_texts(&mut self, key: &str, texts: &[impl ToString]) {
        let values = texts.iter().map(|text| Value::String(text.to_string()));
        self.set(key, Value::Array(values.collect()));
    }

    /// Adds all keys of `other`; its values win.
    pub fn extend(&mut self, other: &Self) {
        for (key, value) in &other.lines {
            self.set(key, value);
        }
        self.tables.extend(other.tables.iter().cloned());
    }

    /// Adds a table `[[name]]`.
    pub fn add_table(&mut self, name: &str, table: Self) {
        self.tables.push((name.to_owned(), table));
    }

    /// Whether the key is set.
    pub fn has(&self, key: &str) -> bool {
        self.lines.iter().any(|(known, _)| known == key)
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let lines = self.lines.iter().map(|(key, value)| format!("{key} = {value}\n"));
        let tables =
            self.tables.iter().map(|(name, table)| format!("\n[[{name}]]\n{}", table.text()));
        lines.chain(tables).collect::<Vec<_>>().concat()
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.text())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn keys_are_set_once_and_texts_are_quoted() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut settings = Settings::server("a \"b\"\\", address(1), address(2));
        settings.set("raft.heartbeat_ms", 50);
        settings.set("raft.heartbeat_ms", 100);
        settings.set_texts("cluster.bootstrap_expect", &[address(2), address(4)]);
        let mut more = Settings::default();
        more.set_text("rpc.address", "127.0.0.1:9");
        settings.extend(&more);
        assert!(settings.has("rpc.address") && !settings.has("data_dir"));
        let table: toml::Table = settings.text().parse().unwrap();
        assert_eq!(table["name"].as_str(), Some("a \"b\"\\"));
        assert_eq!(table["http"]["address"].as_str(), Some("127.0.0.1:1"));
        assert_eq!(table["rpc"]["address"].as_str(), Some("127.0.0.1:9"));
        assert_eq!(table["raft"]["heartbeat_ms"].as_integer(), Some(100));
        assert_eq!(table["cluster"]["bootstrap_expect"].as_array().unwrap().len(), 2);
    }
}
