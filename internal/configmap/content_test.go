package configmap

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
)

func zipped(t testing.TB, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	testkit.Value(z.Write(plain))(t)
	testkit.Must(t, z.Close())
	return b.Bytes()
}

func TestDecode(t *testing.T) {
	valid := zipped(t, []byte(`{"format":1,"generation":7,"entries":{"a/x":{"v":1}}}`))
	got := testkit.Value(decode(valid))(t)
	if diff := cmp.Diff(content{1, 7, map[string]json.RawMessage{"a/x": []byte(`{"v":1}`)}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"empty":          {nil, store.ErrDamaged, "EOF"},
		"not compressed": {[]byte(`{"format":1,"generation":7}`), store.ErrDamaged, "invalid header"},
		"truncated":      {valid[:len(valid)-4], store.ErrDamaged, "unexpected EOF"},
		"one bit":        {append(bytes.Clone(valid[:len(valid)-8]), append([]byte{valid[len(valid)-8] ^ 1}, valid[len(valid)-7:]...)...), store.ErrDamaged, "checksum"},
		"more after it":  {append(bytes.Clone(valid), 'x'), store.ErrDamaged, ""},
		"not JSON":       {zipped(t, []byte("x")), store.ErrDamaged, "invalid character"},
		"two documents":  {zipped(t, []byte(`{"format":1,"generation":7}{}`)), store.ErrDamaged, "invalid character"},
		"other JSON":     {zipped(t, []byte(`[]`)), store.ErrDamaged, "array"},
		"no format":      {zipped(t, []byte(`{}`)), store.ErrDamaged, "format 0, expected 1"},
		"later format":   {zipped(t, []byte(`{"format":2,"generation":7}`)), store.ErrVersion, "a newer cleat"},
		"no generation":  {zipped(t, []byte(`{"format":1}`)), store.ErrDamaged, "generation is 0"},
		"bomb":           {zipped(t, make([]byte, maxContent+1)), store.ErrDamaged, "more than 16777216 bytes"},
	} {
		testkit.WantError(t, name, testkit.Err(decode(c.data)), c.want, c.text)
	}
}

func FuzzDecode(f *testing.F) {
	for _, plain := range []string{`{"format":1,"generation":7,"entries":{"a/x":{"v":1},"a/null":null}}`, `{"format":1,"generation":7}`, `{"format":2}`, `[]`, ``} {
		f.Add(zipped(f, []byte(plain)), true)
		f.Add([]byte(plain), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, compressed bool) {
		if !compressed {
			data = zipped(t, data) // the fuzzer cannot know its checksum
		}
		c, err := decode(data)
		if err != nil {
			if !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		again, err := encode(c)
		if err != nil {
			return // too large
		}
		once := testkit.Value(decode(again))(t)
		twice := testkit.Value(decode(testkit.Value(encode(once))(t)))(t)
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Errorf("(-once +twice):\n%s", diff)
		}
	})
}
