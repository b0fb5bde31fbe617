package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

func raw(t *testing.T, s *Store, key, data string) {
	t.Helper()
	err := s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(things.Name))
		return errors.Join(err, b.Put([]byte(key), []byte(data)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBadRecordsAreNamed(t *testing.T) {
	for data, want := range map[string]error{
		"":                           ErrDamaged,
		"{":                          ErrDamaged,
		`{"v":1}`:                    ErrDamaged,
		`{"v":1,"r":{"Size":"two"}}`: ErrDamaged,
		`{"v":2,"r":{}}`:             ErrVersion,
		`{"r":{}}`:                   ErrVersion,
	} {
		s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
		raw(t, s, "bad-key", data)
		if err := put(t.Context(), s, "good", thing{}); err != nil {
			t.Fatal(err)
		}
		err := s.View(t.Context(), func(tx *Tx) error {
			_, ok, err := things.Get(tx, "bad-key")
			if ok {
				t.Errorf("%s: ok", data)
			}
			var seen []string
			for e, failed := range things.Range(tx, "") {
				seen = append(seen, e.Key)
				if (failed != nil) != (e.Key == "bad-key") {
					t.Errorf("%s: %s: %v", data, e.Key, failed)
				}
			}
			if len(seen) != 2 {
				t.Errorf("%s: saw %v", data, seen)
			}
			return err
		})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "bad-key") || !strings.Contains(err.Error(), "things") {
			t.Errorf("%s: got %v", data, err)
		}
	}
}

func TestForeignDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	db, err := bbolt.Open(path, 0o644, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
	if _, err := Open(t.Context(), path, options()); !errors.Is(err, ErrRole) {
		t.Errorf("got %v", err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o644 {
		t.Errorf("its mode was changed to %v", info.Mode())
	}
}

func TestDamagedFiles(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole.db")
	s := openAt(t, whole, options())
	for i := range 50 {
		if err := put(t.Context(), s, strconv.Itoa(i), thing{Name: strings.Repeat("x", 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	var used, leaf int64
	err := s.View(t.Context(), func(tx *Tx) error {
		used = tx.bolt.Size()
		for id := range int(used) / os.Getpagesize() {
			if p, err := tx.bolt.Page(id); err == nil && p.Type == "leaf" {
				leaf = int64(id * os.Getpagesize())
			}
		}
		return nil
	})
	if err != nil || leaf == 0 {
		t.Fatalf("no page of records, %v", err)
	}
	_ = s.Close()
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	zeroed := append(make([]byte, 8192), data[8192:]...)
	noise := append([]byte{}, data...)
	for i := 8192; i < len(noise); i++ {
		noise[i] = byte(i * 31)
	}
	for name, content := range map[string][]byte{
		"truncated": data[:16384], "short by a byte": data[:used-1], "half a page": data[:2000], "no meta": zeroed, "noise": noise, "empty": {}, "text": []byte("precious"),
		"a zeroed page": append(append(bytes.Clone(data[:leaf]), make([]byte, 4096)...), data[leaf+4096:]...),
	} {
		path := filepath.Join(t.TempDir(), "a.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // and it gives the file free again
			s, err := Open(t.Context(), path, options())
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
			t.Errorf("%s: the refused file was changed from %d to %d bytes, %v", name, len(content), len(now), err)
		}
	}
}

func TestLeftoverOfACrashedCreation(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".a.db.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	openAt(t, filepath.Join(dir, "a.db"), options())
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "absent", "a.db"), options()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory missing: %v", err)
	}
}

func writeForEver(path string) error {
	s, err := Open(context.Background(), path, options())
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		if err := put(context.Background(), s, fmt.Sprintf("%09d", i), thing{Size: int64(i)}); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

func TestAcknowledgedRecordsSurviveAKill(t *testing.T) {
	for round := range 5 {
		path := filepath.Join(t.TempDir(), "a.db")
		writer := exec.CommandContext(t.Context(), "/proc/self/exe")
		writer.Env = append(os.Environ(), writerStore+"="+path)
		writer.Stderr = os.Stderr
		out, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		last := -1
		for lines := bufio.NewScanner(out); lines.Scan(); {
			last, _ = strconv.Atoi(lines.Text())
			if last >= 20*round {
				_ = writer.Process.Kill()
			}
		}
		_ = writer.Wait()
		s := openAt(t, path, options())
		for i := 0; i <= last; i++ {
			if got, ok := get(t, s, fmt.Sprintf("%09d", i)); !ok || got.Size != int64(i) {
				t.Errorf("record %d of %d is gone", i, last)
			}
		}
	}
}
