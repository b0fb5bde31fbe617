package spdk

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func all(r io.Reader, largest int64) (found []answer, err error) {
	f := newFrames(r, largest)
	for {
		a, err := f.next()
		if err != nil {
			return found, err
		}
		found = append(found, a)
	}
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// Responses do not depend on how a stream is split, and no more than the limit
// is read.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"result":true}` + "\n" + `{"id":"2","error":{"code":-19,"message":"No such device"}}`,
		`{"id":1,"result":{"status":"SNAP_SUCCESS","result":[1,2],"message":""}}{"id":2,"status":"SNAP_X","message":"no"}`,
		`{"id":null,"error":{"code":-32600,"message":"Invalid request"}}`,
		`{"id":18446744073709551616,"result":null,"error":null}`,
		`{"id":1,"error":[{}]} {"id":{},"error":"x"}`, `[]`, `1 2 3`, `{"id":"`, `{"id":1e3}`, "\xff\xfe", ` `,
		`{"id":1,"result":"` + strings.Repeat("x", 4096) + `"}`,
	} {
		f.Add([]byte(s), int64(64))
		f.Add([]byte(s), int64(1<<20))
	}
	f.Fuzz(func(t *testing.T, stream []byte, largest int64) {
		largest = min(max(largest, 1), 1<<20)
		whole := &counted{r: bytes.NewReader(stream)}
		want, err := all(whole, largest)
		if err == nil {
			t.Fatal("a stream without an end")
		}
		if bound := largest * int64(len(want)+1); whole.n > bound {
			t.Errorf("read %d bytes for %d answers, the bound is %d each", whole.n, len(want), largest)
		}
		got, splitErr := all(iotest.OneByteReader(bytes.NewReader(stream)), largest)
		if !errors.Is(err, ErrTooLarge) && !errors.Is(splitErr, ErrTooLarge) { // its position depends on the read-ahead
			testkit.Diff(t, "result", want, got, cmp.AllowUnexported(answer{}))
		}
		for _, a := range want {
			var into any
			if err := a.into("x", []byte(`{"psk":"a"}`), &into); err == nil && (a.failed || a.result == nil) {
				t.Errorf("%+v became a success", a)
			}
		}
	})
}

func FuzzRedact(f *testing.F) {
	f.Add("key aab of x", `{"psk":"aa","dhchap_key":"aab","name":"x"}`)
	f.Add("", `{`)
	f.Fuzz(func(t *testing.T, text, params string) {
		once := redact(text, []byte(params))
		if len(params) == 0 && once != text {
			t.Errorf("%q became %q without any parameters", text, once)
		}
	})
}

// All secrets are removed, even if one is a part of another.
func TestRedactRemovesOverlappingSecrets(t *testing.T) {
	got := redact("keys aab and aa of x", []byte(`{"psk":"aa","dhchap_key":"aab","name":"x"}`))
	if want := "keys *** and *** of x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
