//! Where a session is, by the words of docs/protocol.md and by no code of the library.

/// As a Cluster has them by default.
const PARTITIONS: u16 = 64;

/// The slot of a session of the run.
pub fn of_session(number: u32) -> u16 {
    crc16(&tag_of_session(number).to_string()) % 16384
}

/// The hash tag of its partition in a Cluster.
pub fn tag_of_session(number: u32) -> u16 {
    let partition = crc16(&format!("soak-{number}")) % PARTITIONS;
    let fits = |tag: &u16| {
        let slot = crc16(&tag.to_string()) % 16384;
        u32::from(slot) * u32::from(PARTITIONS) / 16384 == u32::from(partition)
    };
    (0..u16::MAX).find(fits).unwrap_or(0)
}

fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let next = crc << 1;
            if crc & 0x8000 == 0 { next } else { next ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    /// From the table in docs/protocol.md.
    #[test]
    fn the_hash_is_that_of_the_page() {
        assert_eq!(super::crc16("session-1") % 64, 56);
        assert_eq!(super::crc16("172") % 16384, 14470);
    }
}
