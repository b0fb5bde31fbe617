package cli

import (
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "1073741824": 1 << 30, "512B": 512, "1GiB": 1 << 30, "1Gi": 1 << 30, "1 GiB": 1 << 30,
		"500M": 500e6, "500MB": 500e6, "1k": 1000, "1K": 1000, "1kB": 1000, "1KB": 1000, "1Ki": 1024, "1KiB": 1024,
		"1.5GiB": 3 << 29, "0.5KiB": 512, "2T": 2e12, "3Pi": 3 << 50, "7EiB": 7 << 60, "9223372036854775807": math.MaxInt64, "1.25k": 1250,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "not a size", "GiB": "not a size", "-1": "not a size", "+1": "not a size", "1e9": "not a size", "0x10": "not a size",
		"1.5": "whole number", "0.3B": "whole number", "8EiB": "larger than", "9223372036854775808": "larger than",
		"10gib": "did you mean", "10Gib": `"GiB"`, "1m": "unit", "1 000": "not a size", "1_000": "not a size", "1,5GiB": "not a size",
		" 1": "not a size", "1GiB\n": "not a size", "10bananas": "there are", strings.Repeat("9", 1000): "not a size", "٣": "not a size",
	} {
		if got, err := ParseSize(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %d, %v; want an error with %q", text, got, err, want)
		}
	}
}

func TestSizeText(t *testing.T) {
	for size, want := range map[Size]string{0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 3 << 29: "1536MiB", 1 << 60: "1EiB", 1<<30 + 1: "1073741825"} {
		if got := size.String(); got != want {
			t.Errorf("%d: got %s, want %s", int64(size), got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Min(0).Draw(t, "bytes") >> rapid.IntRange(0, 62).Draw(t, "shift") << rapid.IntRange(0, 20).Draw(t, "zeros"))
		if size < 0 {
			size = 0
		}
		if back, err := ParseSize(size.String()); err != nil || back != size {
			t.Fatalf("%d is written %s and read as %d, %v", int64(size), size, int64(back), err)
		}
	})
}

func TestSizeAsAFlag(t *testing.T) {
	size := Size(10 << 30)
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	fs.Var(&size, "pool-image", "how large")
	if usage := fs.FlagUsages(); !strings.Contains(usage, "--pool-image size") || !strings.Contains(usage, "10GiB") {
		t.Errorf("usage: %s", usage)
	}
	if err := fs.Parse([]string{"--pool-image", "2GiB"}); err != nil || size != 2<<30 {
		t.Errorf("got %v, %v", size, err)
	}
	if err := fs.Parse([]string{"--pool-image", "many"}); err == nil || size != 2<<30 {
		t.Errorf("got %v, %v", size, err)
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 1 << 30: "1 GiB", 5 << 38: "1.2 TiB",
		math.MaxInt64: "8 EiB", -2048: "-2 KiB", 10<<30 + 1: "10 GiB",
	} {
		if got := HumanBytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

// FuzzParseSize: what is taken is not negative, and reads back as itself.
func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"1GiB", "500M", "0", "1.5Gi", "-1", "9223372036854775807", "1e3", " 7 K"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseSize(text)
		if err != nil {
			return
		}
		if again, err := ParseSize(size.String()); size < 0 || err != nil || again != size {
			t.Errorf("%q is %d, written %q, read back %d, %v", text, size, size.String(), again, err)
		}
	})
}
