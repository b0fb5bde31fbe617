package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// blank requests to stage a volume without content.
func (n *testNode) blank(id volume.ID, t mkfs.Type) node.StageRequest {
	n.t.Helper()
	s := n.staging(id, "")
	testkit.Must(n.t, os.Truncate(n.file(id), size[t]))
	s.Capability.Block, s.Capability.FSType, s.Format = false, string(t), true
	return s
}

func (n *testNode) probe(id volume.ID) mkfs.Info {
	n.t.Helper()
	f := testkit.Value(os.Open(n.file(id)))(n.t)
	defer f.Close()
	return testkit.Value(mkfs.Probe(f))(n.t)
}

func TestFirstStageFormats(t *testing.T) {
	for _, fs := range mkfs.Types() {
		n := newNode(t)
		s := n.blank("v", fs)
		n.up(s, n.publishOf(s, "target"))
		n.write(filepath.Join(n.path("target", false), "f"), "text")
		n.down(s, n.publishOf(s, "target"))
		first := n.probe("v")
		n.up(s, n.publishOf(s, "target"))
		n.reads(filepath.Join(n.path("target", false), "f"), "text")
		n.down(s, n.publishOf(s, "target"))
		if now := n.probe("v"); now != first || now.Type != fs {
			t.Errorf("%s: %+v, then %+v", fs, first, now)
		}
		other := n.blank("w", fs)
		n.up(other)
		n.down(other)
		if n.probe("w").UUID == first.UUID {
			t.Errorf("%s: two volumes have UUID %s", fs, first.UUID)
		}
	}
}

// Only blank volumes whose engine asks for it are formatted.
func TestNoOtherStageFormats(t *testing.T) {
	n := newNode(t)
	raw := n.blank("raw", mkfs.Ext4)
	raw.Format = false
	n.refused(n.Stage(t.Context(), raw), errs.Precondition, "no superblock of a file system")
	read := raw
	read.Format, read.Capability.Mode = true, volume.MultiNodeReaderOnly
	n.refused(n.Stage(t.Context(), read), errs.Precondition, "no superblock of a file system", "never staged")
	block := n.blank("block", mkfs.Ext4)
	block.Capability.Block, block.Capability.FSType = true, ""
	n.up(block)
	n.down(block)
	for _, id := range []volume.ID{"raw", "block"} {
		if got := testkit.Value(os.ReadFile(n.file(id)))(t); strings.Trim(string(got), "\x00") != "" {
			t.Errorf("volume %s was changed", id)
		}
	}
	data := n.blank("data", mkfs.Ext4)
	const at = 9 * mib
	f := testkit.Value(os.OpenFile(n.file("data"), os.O_WRONLY, 0))(t)
	testkit.Value(f.WriteAt([]byte("data"), at))(t)
	testkit.Must(t, f.Close())
	n.refused(n.Stage(t.Context(), data), errs.Precondition, "not blank")
	if got := testkit.Value(os.ReadFile(n.file("data")))(t); strings.Trim(string(got), "\x00") != "data" {
		t.Error("the volume was changed")
	}
	n.loopCount(0)
}

// The image of a killed process is as large as the volume.
func TestStartRemovesFileSystemImages(t *testing.T) {
	n := newNode(t)
	left := filepath.Join(n.dir, "mkfs-0f0e0d0c-0b0a-4908-8706-050403020100")
	n.write(left, "image")
	n.restart()
	n.gone(left)
	if _, err := os.Stat(n.config.Store); err != nil {
		t.Error(err)
	}
}

// Modes of several nodes allow any number of publishes.
func TestModesOfSeveralNodes(t *testing.T) {
	for _, mode := range []volume.AccessMode{volume.MultiNodeMultiWriter, volume.MultiNodeReaderOnly} {
		n := newNode(t)
		s := n.staging("v", "")
		s.Capability.Mode = mode
		a, b := n.publishOf(s, "a"), n.publishOf(s, "b")
		n.up(s, a, b, a)
		f, err := os.OpenFile(a.Target, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.Write(make([]byte, 4096))
			testkit.Must(t, f.Close())
		}
		if (err == nil) != (mode == volume.MultiNodeMultiWriter) {
			t.Errorf("%s: a write returned %v", mode, err)
		}
		single := n.publishOf(s, "c")
		single.Capability.Mode, single.ReadOnly = volume.SingleNodeWriter, true
		n.refused(n.Publish(t.Context(), single), errs.Precondition, "only one publish")
		n.down(s, a, b)
	}
}

// attachLog records the secrets of Attach.
type attachLog struct {
	node.Attacher
	secrets []string
}

func (l *attachLog) Attach(ctx context.Context, t node.Target, u node.Use) (*node.Attachment, error) {
	l.secrets = append(l.secrets, t.Secrets["userKey"])
	return l.Attacher.Attach(ctx, t, u)
}

func TestSecretsReachOnlyTheAttacher(t *testing.T) {
	log := &attachLog{}
	n := newNode(t, func(n *testNode) {
		log.Attacher = n.config.Attachers[file.Protocol()]
		n.config.Attachers[file.Protocol()] = log
	})
	s := n.blank("v", mkfs.Ext4)
	s.Secrets = map[string]string{"userKey": "hush-hush"}
	n.up(s)
	if len(log.secrets) != 1 || log.secrets[0] != "hush-hush" {
		t.Errorf("Attach got %q", log.secrets)
	}
	if strings.Contains(string(testkit.Value(os.ReadFile(n.config.Store))(t)), "hush") {
		t.Error("the store has the secret")
	}
	n.down(s)
}
