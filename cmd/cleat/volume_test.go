package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

// clientCommands returns the client commands with their subcommands.
func clientCommands() []*cobra.Command {
	var all []*cobra.Command
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		all = append(all, c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	for _, c := range []*cobra.Command{newVolumeCommand(), newSnapshotCommand(), newGroupCommand(), newPluginsCommand(), newHostCommand(), newFenceCommand()} {
		walk(c)
	}
	return all
}

// Every command has a short description and an example.
func TestHelpHasDescriptionAndExample(t *testing.T) {
	for _, c := range clientCommands() {
		if c.Short == "" || !strings.Contains(c.Example, "cleat ") {
			t.Errorf("%s: help without a sentence or an example", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if len(line) > 85 {
				t.Errorf("%s: a line of %d columns: %q", c.CommandPath(), len(line), line)
			}
		}
		if c.Runnable() && c.Args == nil {
			t.Errorf("%s checks no arguments", c.CommandPath())
		}
	}
}

// Wrong arguments are refused before a driver is called.
func TestVolumeRefusesWrongArguments(t *testing.T) {
	for line, says := range map[string]string{
		"volume shwo data":                               `did you mean "show"?`,
		"snapshot xyzzyxyzzy":                            "snapshot --help",
		"group lst":                                      `did you mean "list"?`,
		"volume create":                                  "expects NAME",
		"volume create a b":                              "expects NAME",
		"volume create a --size 12bananas":               "12bananas",
		"volume create a --size 2GiB --limit 1GiB":       "--limit",
		"volume create a -p thick":                       "key=value",
		"volume create a -p a=1 -p a=2":                  "twice",
		"volume attach a":                                "expects VOLUME PATH",
		"volume attach a b --context =x":                 "KEY=VALUE",
		"volume expand a":                                "expects VOLUME SIZE",
		"volume expand a large":                          "large",
		"volume modify a":                                "KEY=VALUE",
		"volume modify a b":                              "key=value",
		"volume list a":                                  "no arguments",
		"volume detach":                                  "expects VOLUME|PATH [PATH]",
		"volume changed-blocks":                          "SNAPSHOT",
		"group create a":                                 "expects NAME VOLUME...",
		"snapshot delete":                                "SNAPSHOT",
		"volume list --endpoint tcp://1.2.3.4:5":         "UNIX",
		"volume list -o xml":                             "xml",
		"volume list --secrets-file /does/not/exist.yml": "--secrets-file",
	} {
		t.Run(line, func(t *testing.T) {
			_, err := cleat(t, append(strings.Fields(line), "--state-dir", t.TempDir())...)
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want an error with %q", err, says)
			}
		})
	}
}

func TestDriverUnreachable(t *testing.T) {
	_, err := cleat(t, "volume", "list", "--endpoint", "unix://"+filepath.Join(t.TempDir(), "csi.sock"), "--timeout", "100ms")
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "cleat csi") {
		t.Errorf("%v", err)
	}
}

func TestUseFlagsOverrideCapability(t *testing.T) {
	made := &client.Capability{FSType: "xfs", MountFlags: []string{"noatime"}, AccessMode: "single-node-writer"}
	for line, want := range map[string]*client.Capability{
		"":                                      made,
		"--mount-flags nosuid":                  {FSType: "xfs", MountFlags: []string{"nosuid"}, AccessMode: "single-node-writer"},
		"--block":                               {Block: true, MountFlags: []string{"noatime"}, AccessMode: "single-node-writer"},
		"--access-mode single-node-reader-only": {FSType: "xfs", MountFlags: []string{"noatime"}, AccessMode: "single-node-reader-only"},
	} {
		var f useFlags
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.add(fs)
		testkit.Must(t, fs.Parse(strings.Fields(line)))
		if diff := cmp.Diff(want, f.override(made, fs)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	var f useFlags
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.add(fs)
	if got := f.override(nil, fs); got != nil {
		t.Errorf("no flag and no source gave %+v", got)
	}
}

// A bind mount of a directory, as drivers of directories publish, is a part of a
// larger file system.
func TestTrimPath(t *testing.T) {
	at := func(path string, readOnly, published bool) client.Target {
		return client.Target{Path: path, ReadOnly: readOnly, Published: published}
	}
	dir, whole := testkit.Dir(t), testkit.Dir(t)
	testkit.Must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("tmpfs", whole, "tmpfs", 0, ""))
	defer testkit.Unmount(t, dir)
	defer testkit.Unmount(t, whole)
	for name, c := range map[string]struct {
		v     client.Volume
		want  string
		words string
	}{
		"attached":         {client.Volume{Targets: []client.Target{at(whole, false, true)}}, whole, ""},
		"second is usable": {client.Volume{Targets: []client.Target{at("/a", true, true), at("/b", false, false), at(whole, false, true)}}, whole, ""},
		"detached":         {client.Volume{}, "", "not attached"},
		"block":            {client.Volume{Capability: client.Capability{Block: true}, Targets: []client.Target{at(whole, false, true)}}, "", "block device"},
		"a directory":      {client.Volume{Targets: []client.Target{at(dir, false, true)}}, "", "which other data shares"},
		"not mounted":      {client.Volume{Targets: []client.Target{at(filepath.Join(whole, "x"), false, true)}}, "", "nothing is mounted"},
	} {
		if got, err := trimPath(t.Context(), c.v); got != c.want || (err == nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestProgressWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "working")
	p.notice("the driver is away")
	p.end()
	p.end()
	if out.String() != "cleat: the driver is away\n" {
		t.Errorf("wrote %q", out.String())
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "working")
	p.begun = time.Now().Add(-3 * time.Second)
	p.draw()
	p.notice("the driver is away")
	p.draw()
	p.end()
	got := out.String()
	for _, want := range []string{"working … 3.", "\r\x1b[Kcleat: the driver is away\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("%q: the progress line remains", got)
	}
}

// With an empty list of known IDs every volume would be listed as an orphan.
func TestNotInRequiresIDs(t *testing.T) {
	for text, want := range map[string]int{"": 0, " \n": 0, "vol-1": 1, "vol-1 vol-2\nvol-3\n": 3} {
		known, err := readIDs(strings.NewReader(text), "-")
		if len(known) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v; want %d ids", text, known, err, want)
		}
	}
	if known, err := readIDs(nil, ""); len(known) != 0 || err != nil {
		t.Errorf("without the flag: %v, %v", known, err)
	}
}
