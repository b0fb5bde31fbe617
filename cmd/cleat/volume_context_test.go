package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestReadVolumeContext(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	whole := file("whole.yaml", "targetAddr: 192.0.2.10\ntargetPort: \"4420\"\nnqn: nqn.2024-01.com.example:vol1\n")
	for name, c := range map[string]struct {
		args []string
		want map[string]string
		says string // in the error
	}{
		"nothing":       {nil, nil, ""},
		"pairs":         {[]string{"targetAddr=192.0.2.10", "connections=a=b", "model="}, map[string]string{"targetAddr": "192.0.2.10", "connections": "a=b", "model": ""}, ""},
		"a file":        {[]string{whole}, map[string]string{"targetAddr": "192.0.2.10", "targetPort": "4420", "nqn": "nqn.2024-01.com.example:vol1"}, ""},
		"both":          {[]string{whole, "nsId=1"}, map[string]string{"targetAddr": "192.0.2.10", "targetPort": "4420", "nqn": "nqn.2024-01.com.example:vol1", "nsId": "1"}, ""},
		"stdin":         {[]string{"-"}, map[string]string{"nqn": "nqn.2024-01.com.example:stdin"}, ""},
		"name of a key": {[]string{"dhchapKey=node-key"}, map[string]string{"dhchapKey": "node-key"}, ""},
		"twice":         {[]string{whole, "nqn=nqn.2024-01.com.example:vol2"}, nil, "nqn is set twice"},
		"no key":        {[]string{"=x"}, nil, "KEY=VALUE"},
		"no file":       {[]string{filepath.Join(dir, "none")}, nil, "no such file"},
		"not a map":     {[]string{file("list.yaml", "[a, b]")}, nil, "invalid YAML"},
		"a number":      {[]string{file("number.yaml", "targetPort: 4420\nacceptFlushLoss: true")}, map[string]string{"targetPort": "4420", "acceptFlushLoss": "true"}, ""},
		"a key":         {[]string{"dhchapKey=" + secret}, nil, "--nvme-key-dir"},
		"a path":        {[]string{"dhchapKey=/etc/keys/a"}, nil, "--nvme-key-dir"},
		"hidden key":    {[]string{"note=" + secret}, nil, "--nvme-key-dir"},
		"key as a name": {[]string{secret + "=x"}, nil, "--nvme-key-dir"},
		"key in a file": {[]string{file("key.yaml", "dhchapCtrlrKey: \""+secret+"\"")}, nil, "--nvme-key-dir"},
		"file of a key": {[]string{secret}, nil, "not shown"},
	} {
		got, err := readVolumeContext(strings.NewReader("nqn: nqn.2024-01.com.example:stdin\n"), c.args)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "ia6zGod") {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
}
