package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
)

// Bucket is a set of records of one type, sorted by key. It is created with its
// first record.
type Bucket[T any] struct{ Name string }

// Entry is a record with its key.
type Entry[T any] struct {
	Key   string
	Value T
}

// recordVersion of the envelope; an incompatible change of T needs a new
// Options.Version.
const recordVersion = 1

type record struct {
	Version int             `json:"v"`
	Value   json.RawMessage `json:"r"`
}

// Put writes a record; the key must not be empty.
func (b Bucket[T]) Put(tx *Tx, key string, value T) error {
	inner, err := json.Marshal(value)
	if err != nil {
		return b.wrap(key, "write", err)
	}
	outer, err := json.Marshal(record{recordVersion, inner})
	if err != nil {
		return b.wrap(key, "write", err)
	}
	table, err := tx.tables.create(b.Name)
	if err == nil {
		err = table.Put([]byte(key), outer)
	}
	if err != nil {
		return b.wrap(key, "write", err)
	}
	return nil
}

// Get reads a record. ErrDamaged: it cannot be decoded.
func (b Bucket[T]) Get(tx *Tx, key string) (value T, ok bool, err error) {
	table := tx.tables.find(b.Name)
	if table == nil {
		return value, false, nil
	}
	data := table.Get([]byte(key))
	if data == nil {
		return value, false, nil
	}
	value, err = b.decode([]byte(key), data)
	return value, err == nil, err
}

// Delete removes a record, if it exists.
func (b Bucket[T]) Delete(tx *Tx, key string) error {
	table := tx.tables.find(b.Name)
	if table == nil {
		return nil
	}
	if err := table.Delete([]byte(key)); err != nil {
		return b.wrap(key, "delete", err)
	}
	return nil
}

// Range yields records with keys greater than after, all for "". In an Update
// the loop can put and delete records, also later ones. An undecodable record
// is yielded as an error with its key; the caller can continue.
func (b Bucket[T]) Range(tx *Tx, after string) iter.Seq2[Entry[T], error] {
	return b.walk(tx, []byte(after), nil)
}

// Prefix is like Range for keys that begin with prefix.
func (b Bucket[T]) Prefix(tx *Tx, prefix string) iter.Seq2[Entry[T], error] {
	return b.walk(tx, nil, []byte(prefix))
}

// Values returns the values of records that Range or Prefix yields, or the first error.
func Values[T any](entries iter.Seq2[Entry[T], error]) (all []T, err error) {
	for e, err := range entries {
		if err != nil {
			return nil, err
		}
		all = append(all, e.Value)
	}
	return all, nil
}

func (b Bucket[T]) walk(tx *Tx, after, prefix []byte) iter.Seq2[Entry[T], error] {
	return func(yield func(Entry[T], error) bool) {
		table := tx.tables.find(b.Name)
		if table == nil {
			return
		}
		cursor := table.cursor()
		var key, data []byte
		if len(after) > 0 {
			key, data = seekAfter(cursor, after)
		} else {
			key, data = cursor.Seek(prefix)
		}
		for key != nil && bytes.HasPrefix(key, prefix) {
			at := string(key) // a write in the loop can move the key
			value, err := b.decode(key, data)
			if !yield(Entry[T]{Key: at, Value: value}, err) {
				return
			}
			if tx.tables.writable() {
				key, data = seekAfter(cursor, []byte(at))
			} else {
				key, data = cursor.Next()
			}
		}
	}
}

func seekAfter(cursor cursor, after []byte) (key, data []byte) {
	key, data = cursor.Seek(after)
	if bytes.Equal(key, after) {
		return cursor.Next()
	}
	return key, data
}

func (b Bucket[T]) decode(key, data []byte) (value T, err error) {
	var outer record
	if err := json.Unmarshal(data, &outer); err != nil {
		return value, b.wrap(string(key), "read", fmt.Errorf("%w: %w", ErrDamaged, err))
	}
	if outer.Version != recordVersion {
		return value, b.wrap(string(key), "read", fmt.Errorf("%w: version %d, but this program supports %d", ErrVersion, outer.Version, recordVersion))
	}
	if err := json.Unmarshal(outer.Value, &value); err != nil {
		return value, b.wrap(string(key), "read", fmt.Errorf("%w: %w", ErrDamaged, err))
	}
	return value, nil
}

func (b Bucket[T]) wrap(key, what string, err error) error {
	return fmt.Errorf("%s record %q of bucket %q: %w", what, key, b.Name, err)
}
