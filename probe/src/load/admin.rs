//! How many items a server says that it holds, asked on a connection of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail};

use crate::load::connection::connect;
use crate::load::fell::Fell;
use crate::load::options::{Address, Protocol};
use crate::load::secret::Secret;

/// Items that the server holds now, whoever stored them.
pub fn count(protocol: Protocol, address: &Address, secret: Option<&Secret>) -> Result<u64> {
    let socket: OwnedFd = connect(address, secret)?;
    // A File reads and writes any descriptor; seeking is never asked of it.
    let mut stream = File::from(socket);
    let asking = || format!("asking {address} how much it holds");
    let request: &[u8] = match protocol {
        Protocol::Redis => b"DBSIZE\r\n",
        Protocol::Memcached => b"stats\r\n",
    };
    stream.write_all(request).with_context(asking)?;
    for line in BufReader::new(stream).lines() {
        let line = line.with_context(asking)?;
        let number = match protocol {
            Protocol::Redis => line.strip_prefix(':'),
            Protocol::Memcached => line.strip_prefix("STAT curr_items "),
        };
        if let Some(number) = number.and_then(|text| text.trim().parse().ok()) {
            return Ok(number);
        }
        if protocol == Protocol::Redis || line.trim() == "END" || line.contains("ERROR") {
            bail!(Fell(format!("{} at {address} does not say how much it holds: {line}", protocol.name())));
        }
    }
    bail!(Fell(format!("{} at {address} closed a connection; has it ended?", protocol.name())))
}
