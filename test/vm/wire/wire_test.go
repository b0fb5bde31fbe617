package wire

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func requests() map[string]Request {
	return map[string]Request{
		"exec":      {Op: OpExec, Exec: &Exec{Argv: []string{"sh", "-c", ""}, Env: []string{"A=b=c"}, Dir: "/run"}},
		"dial unix": {Op: OpDial, Dial: &Dial{Network: "unix", Address: "/run/x.sock"}},
		"dial tcp":  {Op: OpDial, Dial: &Dial{Network: "tcp", Address: "127.0.0.1:1"}},
		"push":      {Op: OpPush, Push: &Push{Path: "/a/b", Mode: 0o755, Size: 7}},
		"pull":      {Op: OpPull, Pull: &Pull{Path: "/a"}},
		"halt":      {Op: OpHalt},
	}
}

func TestRequestsRoundTrip(t *testing.T) {
	for name, want := range requests() {
		var line bytes.Buffer
		if err := Write(&line, want); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		line.WriteString("more")
		in := bufio.NewReader(&line)
		got, err := ReadRequest(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-sent +received)\n%s", name, diff)
		}
		if rest, _ := io.ReadAll(in); string(rest) != "more" {
			t.Errorf("%s: got %q after the line, want more", name, rest)
		}
	}
}

func TestInvalidRequestsAreRejected(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"nothing":               {"", "EOF"},
		"no end":                {`{"op":"halt"}`, "unexpected EOF"},
		"not JSON":              {"halt\n", "invalid line"},
		"unknown field":         {`{"op":"halt","now":true}` + "\n", `unknown field "now"`},
		"two values":            {`{"op":"halt"} {}` + "\n", "more than one value"},
		"unknown operation":     {`{"op":"format"}` + "\n", `"format" is not one of`},
		"no operation":          {"{}\n", `"" is not one of`},
		"no part":               {`{"op":"exec"}` + "\n", "has 0 parts"},
		"another part":          {`{"op":"exec","pull":{"path":"/a"}}` + "\n", "has 1 parts"},
		"two parts":             {`{"op":"pull","pull":{"path":"/a"},"dial":{"network":"tcp","address":"a"}}` + "\n", "has 2 parts"},
		"halt with a part":      {`{"op":"halt","pull":{"path":"/a"}}` + "\n", "has 1 parts"},
		"no program":            {`{"op":"exec","exec":{"argv":[]}}` + "\n", "names no program"},
		"empty program":         {`{"op":"exec","exec":{"argv":[""]}}` + "\n", "names no program"},
		"NUL":                   {`{"op":"exec","exec":{"argv":["a","b\u0000"]}}` + "\n", "contains a NUL"},
		"variable":              {`{"op":"exec","exec":{"argv":["a"],"env":["PATH"]}}` + "\n", "not NAME=value"},
		"variable without name": {`{"op":"exec","exec":{"argv":["a"],"env":["=b"]}}` + "\n", "not NAME=value"},
		"directory":             {`{"op":"exec","exec":{"argv":["a"],"dir":"run"}}` + "\n", "not absolute and clean"},
		"network":               {`{"op":"dial","dial":{"network":"udp","address":"a"}}` + "\n", "neither unix nor tcp"},
		"address":               {`{"op":"dial","dial":{"network":"tcp","address":""}}` + "\n", "names no address"},
		"mode":                  {`{"op":"push","push":{"path":"/a","mode":2541,"size":1}}` + "\n", "more than permission bits"},
		"size":                  {`{"op":"push","push":{"path":"/a","mode":0,"size":-1}}` + "\n", "size -1 is negative"},
		"path":                  {`{"op":"pull","pull":{"path":"/a/../b"}}` + "\n", "not absolute and clean"},
		"endless":               {strings.Repeat(" ", MaxLine) + "\n", "more than 1048576 bytes"},
	} {
		if _, err := ReadRequest(bufio.NewReader(strings.NewReader(c.line))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestTooLongLineIsNotSent(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, Reply{Error: strings.Repeat("x", MaxLine)}); err == nil || b.Len() > 0 {
		t.Errorf("got %d bytes sent, error %v; want an error and no bytes", b.Len(), err)
	}
}

func TestHelloCheck(t *testing.T) {
	good := Hello{Version: Version, Token: "t"}
	if err := good.Check("t"); err != nil {
		t.Error(err)
	}
	for want, h := range map[string]Hello{
		"build both from the same tree":     {Version: Version + 1, Token: "t"},
		"is not that of this guest":         {Version: Version},
		"guest setup failed: no module xfs": {Version: Version, Token: "t", Fault: "no module xfs"},
	} {
		if err := h.Check("t"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", h, err, want)
		}
	}
}

// A request that ReadRequest accepts is valid and encodes to the same line
// again.
func FuzzReadRequest(f *testing.F) {
	for _, r := range requests() {
		var line bytes.Buffer
		testkit.Must(f, Write(&line, r))
		f.Add(line.Bytes())
	}
	f.Add([]byte(`{"op":"exec","exec":{"argv":["a"],"env":["PATH"]}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		if err := r.Check(); err != nil {
			t.Fatalf("an invalid request was accepted: %v", err)
		}
		var line bytes.Buffer
		testkit.Must(t, Write(&line, r))
		again := testkit.Value(ReadRequest(bufio.NewReader(&line)))(t)
		var second bytes.Buffer
		testkit.Must(t, Write(&second, again))
		line.Reset()
		if err := Write(&line, r); err != nil || line.String() != second.String() {
			t.Fatalf("%s became %s (%v)", line.String(), second.String(), err)
		}
	})
}
