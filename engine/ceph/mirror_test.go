//go:build ceph

package ceph

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
)

// site is a cluster with a pool for mirrored images.
type site struct {
	*cephtest.Cluster
	config Config
}

const mirrorPool = "mirrored"

func newSite(t *testing.T, c *cephtest.Cluster) site {
	t.Helper()
	testkit.Must(t, c.CreatePool(mirrorPool))
	t.Cleanup(func() {
		testkit.Value(c.Command("osd", "pool", "delete", mirrorPool, mirrorPool, "--yes-i-really-really-mean-it"))(t)
	})
	key := testkit.Value(c.User("mirrored", "mon", "profile rbd", "mgr", "profile rbd pool="+mirrorPool, "osd", "profile rbd pool="+mirrorPool))(t)
	return site{c, Config{
		Cluster:     cephconf.Cluster{ID: "test", Monitors: []string{"v2:" + c.Monitors()[0]}},
		Credentials: cephconf.Credentials{User: "mirrored", Key: key}, Pools: []string{mirrorPool}, Logger: testkit.NewLog(t).Logger(),
	}}
}

func (s site) rbd(t *testing.T, command string, args ...any) string {
	t.Helper()
	return testkit.Value(s.RBD(strings.Fields(fmt.Sprintf(command, args...))...))(t)
}

// mirror has the second site's daemon copy the images of the first that are
// enabled for it.
func mirror(t *testing.T, from, to site) {
	t.Helper()
	for _, s := range []site{from, to} {
		s.rbd(t, "mirror pool enable %s image", mirrorPool)
	}
	token := filepath.Join(t.TempDir(), "token")
	testkit.Must(t, os.WriteFile(token, []byte(from.rbd(t, "mirror pool peer bootstrap create --site-name first %s", mirrorPool)), 0o600))
	to.rbd(t, "mirror pool peer bootstrap import --site-name second --direction rx-only %s %s", mirrorPool, token)
	cmd := exec.Command("rbd-mirror", "-f", "-n", "client.admin", "-c", to.Conf(), // with short intervals
		"--rbd_mirror_pool_replayers_refresh_interval=1", "--rbd_mirror_image_state_check_interval=1")
	cmd.Env = append(os.Environ(), "CEPH_CONF="+to.Conf())
	testkit.Start(t, cmd)
}

// A volume whose image was mirrored to another cluster, and promoted there, is
// neither gone nor made again under its old id.
func TestMirroredImage(t *testing.T) {
	t.Parallel()
	second := cephtest.Start(t, cephtest.Options{Addr: clusterAddress})
	testkit.Must(t, second.CreatePool("other")) // the numbers of the pools differ
	from, to := newSite(t, shared.Cluster), newSite(t, second)
	mirror(t, from, to)
	e := open(t, from.config)
	v := create(t, e, "v", volume.Source{})
	spec := mirrorPool + "/" + imageName(hash("v"))
	from.rbd(t, "bench --io-type write --io-size 4K --io-total 4K %s", spec)
	from.rbd(t, "mirror image enable %s snapshot", spec)
	testkit.EventuallyNil(t, "the copy is complete", func() error {
		out, err := to.RBD("mirror", "image", "status", spec)
		if err == nil && (!strings.Contains(out, "up+replaying") || !strings.Contains(out, `"idle"`)) {
			err = fmt.Errorf("status: %s", out)
		}
		return err
	})

	other := open(t, to.config)
	here := volume.ID(testkit.Value(other.pools[0].inspect(imageName(hash("v"))))(t).volumeID().String())
	wantRefused := func(err error, what string, words ...string) {
		t.Helper()
		testkit.WantError(t, what, err, errs.Precondition, words...)
	}
	wantRefused(testkit.Err(other.Create(testkit.Context(t), request("v", volume.Source{}))), "Create beside a copy", "rbd mirror image promote")
	wantRefused(other.Delete(testkit.Context(t), here), "Delete of a copy", "rbd mirror image promote")
	wantRefused(other.Delete(testkit.Context(t), v.ID), "Delete by the first cluster's id", string(here))

	from.rbd(t, "mirror image demote %s", spec)
	wantRefused(e.Delete(testkit.Context(t), v.ID), "Delete of a demoted image", "rbd mirror image promote")
	testkit.EventuallyNil(t, "the copy is promoted", func() error {
		_, err := to.RBD("mirror", "image", "promote", spec)
		return err
	})
	wantRefused(testkit.Err(other.Get(testkit.Context(t), v.ID)), "Get by the first cluster's id", string(here))
	wantRefused(other.Delete(testkit.Context(t), v.ID), "Delete by the first cluster's id", string(here))
	again := create(t, other, "v", volume.Source{})
	if again.ID != here {
		t.Errorf("Create returns %s, want the promoted %s", again.ID, here)
	}
	if out := to.rbd(t, "du --format json %s", spec); !strings.Contains(out, `"used_size":4194304`) {
		t.Errorf("the promoted image has not the content: %s", out)
	}
	testkit.Must(t, other.Delete(testkit.Context(t), again.ID))
	testkit.EventuallyNil(t, "the image is removed", func() error {
		names, err := to.RBD("ls", mirrorPool)
		if err == nil && names != "" {
			err = fmt.Errorf("images left: %s", names)
		}
		return err
	})
}

// A recorded image that came from another cluster while a creation of its name had
// begun here is the volume, and is not replaced as a part of that creation.
func TestMirroredImageOfBegunCreation(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	writeImage(t, v)
	testkit.Must(t, e.pools[0].beginCreation(hash("v"), "00000000-0000-4000-8000-000000000000"))
	rbdTool(t, config, "deep cp VOLUME VOLUME-copy", "rm VOLUME", "mv VOLUME-copy VOLUME")
	if again := create(t, e, "v", volume.Source{}); again.ID != v.ID {
		t.Errorf("the volume was replaced by %s", again.ID)
	}
	wantContent(t, testkit.Value(e.Get(testkit.Context(t), v.ID))(t))
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}
