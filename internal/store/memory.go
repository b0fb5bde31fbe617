package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// memory is the content of a Shared in one transaction.
type memory struct {
	tables   map[string]*memoryTable
	readOnly bool
}

type memoryTable struct {
	keys     []string // sorted
	values   map[string][]byte
	readOnly bool
}

// entryName returns the name of a record in an Object: it has no NUL, which
// keys can have and an omap key of librados cannot.
func entryName(bucket, key string) string { return url.PathEscape(bucket) + "/" + url.PathEscape(key) }

func parseEntryName(name string) (bucket, key string, err error) {
	bucket, key, found := strings.Cut(name, "/")
	if !found {
		return "", "", fmt.Errorf("%w: the name %q of an entry has no slash", ErrDamaged, name)
	}
	bucket, err1 := url.PathUnescape(bucket)
	key, err2 := url.PathUnescape(key)
	if err := errors.Join(err1, err2); err != nil || entryName(bucket, key) != name {
		return "", "", fmt.Errorf("%w: the name %q of an entry is not escaped", ErrDamaged, name)
	}
	return bucket, key, nil
}

func newMemory(entries map[string][]byte, readOnly bool) (*memory, error) {
	m := &memory{tables: map[string]*memoryTable{}, readOnly: readOnly}
	for name, value := range entries {
		bucket, key, err := parseEntryName(name)
		if err != nil {
			return nil, err
		}
		m.table(bucket).values[key] = value
	}
	for _, t := range m.tables {
		t.keys = slices.Sorted(maps.Keys(t.values))
	}
	return m, nil
}

func (m *memory) table(bucket string) *memoryTable {
	t := m.tables[bucket]
	if t == nil {
		t = &memoryTable{values: map[string][]byte{}, readOnly: m.readOnly}
		m.tables[bucket] = t
	}
	return t
}

func (m *memory) find(bucket string) table {
	if t := m.tables[bucket]; t != nil {
		return t
	}
	return nil
}

var errReadOnly = errors.New("the transaction is read-only")

func (m *memory) create(bucket string) (table, error) {
	if m.readOnly {
		return nil, errReadOnly
	}
	return m.table(bucket), nil
}

func (m *memory) writable() bool { return !m.readOnly }

// difference returns the changes since entries.
func (m *memory) difference(entries map[string][]byte) (set map[string][]byte, remove []string) {
	set = map[string][]byte{}
	kept := map[string]bool{}
	for bucket, t := range m.tables {
		for key, value := range t.values {
			name := entryName(bucket, key)
			kept[name] = true
			if before, existed := entries[name]; !existed || !bytes.Equal(before, value) {
				set[name] = value
			}
		}
	}
	for name := range entries {
		if !kept[name] {
			remove = append(remove, name)
		}
	}
	slices.Sort(remove)
	return set, remove
}

func (t *memoryTable) Get(key []byte) []byte { return t.values[string(key)] }

func (t *memoryTable) Put(key, value []byte) error {
	switch {
	case t.readOnly:
		return errReadOnly
	case len(key) == 0:
		return errors.New("the key is empty")
	}
	if i, found := slices.BinarySearch(t.keys, string(key)); !found {
		t.keys = slices.Insert(t.keys, i, string(key))
	}
	t.values[string(key)] = value
	return nil
}

func (t *memoryTable) Delete(key []byte) error {
	if t.readOnly {
		return errReadOnly
	}
	if i, found := slices.BinarySearch(t.keys, string(key)); found {
		t.keys = slices.Delete(t.keys, i, i+1)
		delete(t.values, string(key))
	}
	return nil
}

func (t *memoryTable) cursor() cursor { return &memoryCursor{table: t} }

type memoryCursor struct {
	table *memoryTable
	at    int
}

func (c *memoryCursor) Seek(from []byte) (key, value []byte) {
	c.at, _ = slices.BinarySearch(c.table.keys, string(from))
	return c.read()
}

func (c *memoryCursor) Next() (key, value []byte) {
	c.at++
	return c.read()
}

func (c *memoryCursor) read() (key, value []byte) {
	if c.at >= len(c.table.keys) {
		return nil, nil
	}
	k := c.table.keys[c.at]
	return []byte(k), c.table.values[k]
}
