package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// fill writes size random bytes, which cannot be compressed or deduplicated,
// and syncs.
func fill(b *testing.B, path string, size int64) {
	b.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600))(b)
	defer f.Close()
	source := rand.NewChaCha8([32]byte{1})
	testkit.Value(io.CopyN(f, source, size))(b)
	testkit.Must(b, f.Sync())
}

// scatter rewrites count blocks at random places.
func scatter(b *testing.B, path string, size int64, count int) {
	b.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_WRONLY, 0o600))(b)
	defer f.Close()
	data := make([]byte, 4096)
	for range count {
		_, _ = rand.NewChaCha8([32]byte{2, byte(count)}).Read(data) // never fails
		testkit.Value(f.WriteAt(data, rand.Int64N(size/4096)*4096))(b)
	}
	testkit.Must(b, f.Sync())
}

// compare reads two files and counts the blocks that differ.
func compare(b *testing.B, left, right string) (differ int) {
	b.Helper()
	var files [2]*os.File
	for i, path := range []string{left, right} {
		f := testkit.Value(os.Open(path))(b)
		defer f.Close()
		files[i] = f
	}
	var chunk [2][1 << 20]byte
	for {
		n, err := io.ReadFull(files[0], chunk[0][:])
		if _, err2 := io.ReadFull(files[1], chunk[1][:n]); err2 != nil && err == nil {
			b.Fatal(err2)
		}
		for at := 0; at < n; at += 4096 {
			if !bytes.Equal(chunk[0][at:at+4096], chunk[1][at:at+4096]) {
				differ++
			}
		}
		if err != nil {
			return differ
		}
	}
}

// fio runs one direct job for two seconds and returns MiB/s.
func fio(b *testing.B, path, rw, bs string) float64 {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), "fio", "--name=job", "--filename="+path, "--rw="+rw, "--bs="+bs,
		"--direct=1", "--ioengine=libaio", "--iodepth=16", "--size=512M", "--runtime=2", "--time_based", "--output-format=json").Output()
	if err != nil {
		b.Fatalf("fio: %v", err)
	}
	var result struct {
		Jobs []struct {
			Read, Write struct {
				BW float64 `json:"bw"` // KiB/s
			}
		}
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.Jobs) != 1 {
		b.Fatalf("fio: %v in %s", err, out)
	}
	return (result.Jobs[0].Read.BW + result.Jobs[0].Write.BW) / 1024
}
