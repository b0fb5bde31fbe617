package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// TestDamagedRecords: whatever became of engine.db, the start is refused with a
// message that names it and says what to do; nothing is written into it, and no
// new one is made.
func TestDamagedRecords(t *testing.T) {
	pool := t.TempDir()
	e := open(t, config(pool))
	for i := range 30 {
		create(t, e, volume.CreateRequest{Name: fmt.Sprint("v", i), Size: volume.SizeRange{Required: granule}})
	}
	closeEngine(t, e)
	path := filepath.Join(pool, storeName)
	whole, err := os.ReadFile(path)
	check(t, err)
	page := os.Getpagesize()
	leaf := bytes.LastIndex(whole, []byte(`"name":"v29"`)) / page * page
	record := bytes.LastIndex(whole, []byte(`{"v":1,"r":{"name":"v29"`))
	if leaf < 2*page || record < leaf {
		t.Fatalf("page of the records at %d, one of them at %d", leaf, record)
	}
	with := func(at int, content []byte) []byte {
		damaged := bytes.Clone(whole)
		copy(damaged[at:], content)
		return damaged
	}
	for name, content := range map[string][]byte{
		"empty":                {},
		"text":                 []byte("precious"),
		"truncated":            whole[:3*page],
		"without its head":     with(0, make([]byte, 2*page)),
		"all zero":             make([]byte, len(whole)),
		"with a zeroed page":   with(leaf, make([]byte, page)),
		"with a page of noise": with(leaf, bytes.Repeat([]byte("noise"), page/5)),
		"with a broken page":   with(leaf+16, bytes.Repeat([]byte{0xff}, 256)),
		"with a broken record": with(record, []byte(`{"v":1,"r":{{{`)),
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.WriteFile(path, content, 0o600))
			for range 2 { // and the pool is free again
				refusesRecords(t, pool)
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
				t.Errorf("the refused file has %d bytes now, %v; want the same %d", len(now), err, len(content))
			}
		})
	}
	for name, make := range map[string]func() error{
		"a FIFO":      func() error { return unix.Mkfifo(path, 0o600) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			check(t, errors.Join(os.Remove(path), make()))
			refusesRecords(t, pool)
		})
	}
	check(t, errors.Join(os.Remove(path), os.WriteFile(path, whole, 0o600)))
	if all, err := open(t, config(pool)).List(t.Context(), "", 0); err != nil || len(all) != 30 {
		t.Errorf("with the file back: %d volumes, %v", len(all), err)
	}
}

func refusesRecords(t *testing.T, pool string) {
	t.Helper()
	e, err := Open(t.Context(), config(pool))
	if err == nil {
		closeEngine(t, e)
	}
	wantKind(t, err, "a start with damaged records", errs.Precondition)
	for _, word := range []string{filepath.Join(pool, storeName), "damaged", "from a backup"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}
