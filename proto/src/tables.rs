//! What `pulsar.proto` says about every field, as tables: number, kind of value, label.
//!
//! One static per message, named like the message (`MESSAGE_ID_DATA` for `MessageIdData`).

/// The fields of one message.
#[derive(Debug)]
pub struct Message {
    /// Name of the message in the schema.
    pub name: &'static str,
    /// The bits of all required fields together.
    pub required: u64,
    /// Every field, ascending by number.
    pub fields: &'static [Field],
}

impl Message {
    /// The field of that number, if the schema has one.
    #[must_use]
    pub fn field(&self, number: u32) -> Option<&'static Field> {
        let fields = self.fields;
        // Most messages number their fields 1, 2, 3, … without a gap.
        let guess = fields.get((number as usize).wrapping_sub(1));
        if let Some(field) = guess.filter(|field| field.number == number) {
            return Some(field);
        }
        let at = fields
            .binary_search_by_key(&number, |field| field.number)
            .ok()?;
        fields.get(at)
    }
}

/// One field.
#[derive(Debug)]
pub struct Field {
    /// Field number on the wire.
    pub number: u32,
    /// Name of the field in the schema.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Whether it may occur many times; repeated numbers may then also come packed.
    pub repeated: bool,
    /// The field's own bit if it is required, else 0.
    pub required: u64,
}

/// Kind of a field's value.
#[derive(Debug)]
pub enum Kind {
    /// An integer or boolean.
    Varint,
    /// An enum with these known numbers.
    Enum(&'static [i32]),
    /// A double.
    Fixed64,
    /// UTF-8 text.
    String,
    /// Any bytes.
    Bytes,
    /// A nested message.
    Message(&'static Message),
}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));
