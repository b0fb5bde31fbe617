package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
)

// writerImage has a shell and the program of directory writer.
const writerImage = "cleat.local/writer:local"

// writingImage builds writerImage; dir is for the program.
func writingImage(ctx context.Context, dir string) (oci.Image, error) {
	return shellImage(ctx, dir, writerImage, "writer")
}

// shellImage builds an image with a shell and the program of a directory here.
func shellImage(ctx context.Context, dir, reference, name string) (oci.Image, error) {
	program := filepath.Join(dir, "bin", name)
	if err := testkit.BuildTo(ctx, program, "./test/kubernetes/"+name); err != nil {
		return oci.Image{}, err
	}
	image, err := cluster.BusyboxImage(ctx, reference, "/"+name)
	image.Layers = append(image.Layers, oci.FileLayer(oci.File{Path: "/" + name, Mode: 0o755, Content: oci.HostFile(program)}))
	return image, err
}

// loggerImage has a shell and the program of directory logger. Its archive is
// small: nodes in guests import it.
const (
	loggerImage   = "cleat.local/logger:local"
	loggerArchive = "logger.tar"
)

func loggingImage(ctx context.Context, dir string) error {
	image, err := shellImage(ctx, dir, loggerImage, "logger")
	if err != nil {
		return err
	}
	return cluster.WriteImages(filepath.Join(dir, loggerArchive), image)
}

// workload is a set of pods that write continuously. Acknowledged records are
// logged in journals on the node, outside of the volumes.
type workload struct {
	*space
	journals   string
	settleTime time.Duration // for asynchronous clean-up by the kubelet and the driver
	writers    []*writer
}

// writer is a pod that writes to targets with unique names.
type writer struct {
	name     string
	mounts   map[string]string // see pod
	devices  map[string]string
	inline   string            // path of an inline volume of csi.cleat.dev; optional
	targets  map[string]string // file or device by name
	restarts int32             // expected restarts of the container
	place    func(*corev1.Pod) // selects the node; optional
}

func newWorkload(s *space) *workload {
	s.Helper()
	w := &workload{space: s, journals: filepath.Join(testCluster.Dir, "journals-"+s.name), settleTime: waitTimeout}
	testkit.Must(s, os.MkdirAll(w.journals, 0o755))
	return w
}

// with returns the workload for a subtest.
func (w *workload) with(t *testing.T) *workload {
	inner := *w
	inner.space = &space{T: t, name: w.name}
	return &inner
}

// add starts a writer and waits until each target has records.
func (w *workload) add(o *writer) {
	w.Helper()
	w.startWriter(o)
	w.writers = append(w.writers, o)
	w.running(o.name)
	w.advances()
}

func (w *workload) startWriter(o *writer) {
	w.Helper()
	words := []string{"exec", "/writer", "/journals"}
	for _, name := range slices.Sorted(maps.Keys(o.targets)) {
		words = append(words, name+"="+o.targets[name])
	}
	w.start(o.name, pod{mounts: o.mounts, devices: o.devices, command: strings.Join(words, " "), change: func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		if o.place != nil {
			o.place(p)
		}
		c := &p.Spec.Containers[0]
		c.Image = writerImage
		directory := corev1.HostPathDirectory
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "journals", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: w.journals, Type: &directory}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "journals", MountPath: "/journals"})
		if o.inline != "" {
			fsType := "ext4"
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{
				CSI: &corev1.CSIVolumeSource{Driver: "csi.cleat.dev", FSType: &fsType, VolumeAttributes: map[string]string{"size": "64Mi"}}}})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "inline", MountPath: o.inline})
		}
	}})
}

// acknowledgement is a line of a journal.
type acknowledgement struct {
	number uint64
	at     time.Time
}

// journal returns the records of a target since a time, preceded by the last
// earlier one. An error that the writer logged is returned.
func (w *workload) journal(target string, since time.Time) ([]acknowledgement, error) {
	text, err := os.ReadFile(filepath.Join(w.journals, target))
	if err != nil {
		return nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1] // an incomplete last line is being written
	var all []acknowledgement
	for line := range strings.Lines(string(text)) {
		var a acknowledgement
		var at int64
		if _, err := fmt.Sscan(line, &a.number, &at); err != nil {
			return nil, fmt.Errorf("writer of %s: %s", target, line)
		}
		if a.at = time.Unix(0, at); len(all) > 0 && a.at.Before(since) {
			all = all[:0]
		}
		all = append(all, a)
	}
	return all, nil
}

// advances waits until every target has new records.
func (w *workload) advances() {
	w.Helper()
	began := time.Now()
	w.until("new records of all writers", func(context.Context) error {
		for _, o := range w.writers {
			for target := range o.targets {
				all, err := w.journal(target, began)
				if errors.Is(err, fs.ErrNotExist) {
					return err
				}
				testkit.Must(w, err)
				if len(all) < 3 {
					return fmt.Errorf("%s has %d records since %s", target, len(all), began.Format(time.TimeOnly))
				}
			}
		}
		return nil
	})
}

// pause returns the longest time without a record of any target.
func (w *workload) pause(since time.Time) (longest time.Duration, of string, count int, err error) {
	for _, o := range w.writers {
		for target := range o.targets {
			all, err := w.journal(target, since)
			if err != nil {
				return 0, "", 0, err
			}
			count += max(0, len(all)-1)
			for i := range len(all) - 1 {
				if gap := all[i+1].at.Sub(all[i].at); gap > longest {
					longest, of = gap, target
				}
			}
		}
	}
	return longest, of, count, nil
}

// intact checks that every writer's pod reads all acknowledged records, and
// that its container was restarted as expected.
func (w *workload) intact(ctx context.Context) error {
	var failed []error
	for _, o := range w.writers {
		command := []string{"-n", w.name, "exec", o.name, "--", "/writer", "-check", "/journals"}
		for _, name := range slices.Sorted(maps.Keys(o.targets)) {
			command = append(command, name+"="+o.targets[name])
		}
		out, err := testCluster.Kubectl(ctx, "", command...)
		if err == nil && strings.Count(out, "are as written") != len(o.targets) {
			err = fmt.Errorf("%d targets: got %q", len(o.targets), out)
		}
		failed = append(failed, err)
		p, err := testCluster.Client.CoreV1().Pods(w.name).Get(ctx, o.name, metav1.GetOptions{})
		if err != nil {
			failed = append(failed, err)
		} else if got := p.Status.ContainerStatuses[0].RestartCount; got != o.restarts {
			failed = append(failed, fmt.Errorf("the container of pod %s was restarted %d times, want %d", o.name, got, o.restarts))
		}
	}
	return errors.Join(failed...)
}

// inventory describes mounts and loop devices in use, by name. Equal
// inventories mean that nothing was disturbed or left over.
type inventory map[string]string

// takeInventory lists mounts of volumes and pools, and loop devices.
func takeInventory(ctx context.Context) (inventory, error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return nil, err
	}
	g := inventory{}
	for _, e := range table {
		for _, part := range []string{"/kubernetes.io/csi/", "/kubernetes.io~csi/", "/var/lib/cleat/"} {
			if strings.Contains(e.Target, part) {
				g[fmt.Sprintf("mount %d at %s", e.ID, e.Target)] = fmt.Sprintf("%d:%d %s %v %v", e.Major, e.Minor, e.Root, e.Options, e.SuperOptions)
			}
		}
	}
	devices, err := ownDevices(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		g["device "+d.Path] = fmt.Sprintf("of file %s, read-only %t", d.Backing, d.ReadOnly)
	}
	return g, nil
}

// ownDevices returns the loop devices of this cluster: of pools, of files in
// pools, and the kubelet's for block volumes.
func ownDevices(ctx context.Context) ([]loop.Device, error) {
	images, err := filepath.Glob("/var/lib/cleat/*/storage/*.img")
	if err != nil {
		return nil, err
	}
	files, within := map[loop.Backing]bool{}, map[uint64]bool{}
	for _, image := range images {
		var own, pool unix.Stat_t
		if err := errors.Join(unix.Stat(image, &own), unix.Stat(strings.TrimSuffix(image, ".img"), &pool)); err != nil {
			return nil, err
		}
		files[loop.Backing{Dev: own.Dev, Inode: own.Ino}] = true
		within[pool.Dev] = pool.Dev != own.Dev
	}
	all, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	var ours []loop.Device
	for grew := true; grew; {
		grew = false
		for _, d := range all {
			if slices.Contains(ours, d) || !files[d.Backing] && !within[d.Backing.Dev] {
				continue
			}
			ours, grew = append(ours, d), true
			var node unix.Stat_t
			if err := unix.Stat(d.Path, &node); err != nil {
				return nil, err
			}
			files[loop.Backing{Dev: node.Dev, Inode: node.Ino}] = true
		}
	}
	return ours, nil
}

// compare returns the differences from a later inventory.
func (g inventory) compare(now inventory) error {
	var failed []error
	for what, was := range g {
		if is, there := now[what]; !there {
			failed = append(failed, fmt.Errorf("%s (%s) is gone", what, was))
		} else if is != was {
			failed = append(failed, fmt.Errorf("%s changed from %s to %s", what, was, is))
		}
	}
	for what, is := range now {
		if _, there := g[what]; !there {
			failed = append(failed, fmt.Errorf("%s (%s) is new", what, is))
		}
	}
	return errors.Join(failed...)
}

// count returns the number of entries of a kind, mounts or devices.
func (g inventory) count(kind string) (n int) {
	for what := range g {
		if strings.HasPrefix(what, kind+" ") {
			n++
		}
	}
	return n
}

// undisturbed runs what and returns an error if users of volumes notice:
// mounts, devices and containers must be unchanged, every record exist, and the
// writers continue. It logs the longest pause.
func (w *workload) undisturbed(what func()) error {
	w.Helper()
	w.advances()
	before, err := takeInventory(w.Context())
	if err != nil {
		return err
	}
	began := time.Now()
	what()
	took := time.Since(began)
	w.advances()
	longest, of, count, err := w.pause(began)
	if err != nil {
		return err
	}
	w.Logf("%.1f s; %d records were acknowledged, the longest pause was %d ms (%s)", took.Seconds(), count, longest.Milliseconds(), of)
	if longest > 30*time.Second {
		err = fmt.Errorf("%s got no record for %s", of, longest)
	}
	settleCtx, cancel := context.WithTimeout(w.Context(), w.settleTime)
	defer cancel()
	quiet := poll(settleCtx, func(ctx context.Context) error {
		now, err := takeInventory(ctx)
		if err != nil {
			return err
		}
		return before.compare(now)
	})
	if quiet != nil { // the last check can be interrupted by the timeout
		now, lookErr := takeInventory(w.Context())
		quiet = errors.Join(lookErr, before.compare(now))
	}
	return errors.Join(err, quiet, w.intact(w.Context()))
}

// load starts a writer with file systems and a device of a release.
func (w *workload) load(release string, fileSystems ...string) *writer {
	w.Helper()
	o := &writer{name: release, mounts: map[string]string{}, devices: map[string]string{}, targets: map[string]string{}}
	for _, of := range fileSystems {
		claimed := release + "-" + of
		size := map[string]string{"xfs": "320Mi", "ext4": "64Mi"}[of]
		w.claim(claimed, claim{class: claimed, size: size})
		o.mounts["/"+of], o.targets[claimed] = claimed, "/"+of+"/records"
	}
	raw := release + "-raw"
	w.claim(raw, claim{class: release + "-xfs", size: "32Mi", block: true})
	o.devices["/dev/raw"], o.targets[raw] = raw, "/dev/raw"
	return o
}

// startOthers creates claims of both releases with pods, without waiting;
// finishOthers and deleteOthers take the same name.
func (w *workload) startOthers(name string) {
	w.Helper()
	for _, release := range []string{"local", "single"} {
		files, raw := name+"-"+release+"-files", name+"-"+release+"-raw"
		labels := map[string]string{"of": name}
		w.claim(files, claim{class: release + "-ext4", size: "48Mi", labels: labels})
		w.claim(raw, claim{class: release + "-xfs", size: "16Mi", block: true, labels: labels})
		w.start(name+"-"+release, pod{
			mounts: map[string]string{"/data": files}, devices: map[string]string{"/dev/raw": raw},
			change: func(p *corev1.Pod) { p.Labels = labels },
		})
	}
}

// finishOthers waits until all are ready, writes to them, and takes a snapshot.
func (w *workload) finishOthers(name string) {
	w.Helper()
	for _, release := range []string{"local", "single"} {
		w.running(name + "-" + release)
		w.exec(name+"-"+release, "echo kept >/data/a; sync; dd if=/data/a of=/dev/raw bs=512 conv=sync,fsync 2>/dev/null; head -c 5 /dev/raw")
	}
}

// startSnapshots creates snapshots of them and of the continuous writers'
// volumes.
func (w *workload) startSnapshots(name string) {
	w.Helper()
	for _, release := range []string{"local", "single"} {
		for _, claimed := range []string{name + "-" + release + "-files", release + "-xfs"} {
			w.apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[1]s-of-%[2]s, labels: {of: %[1]s}}
spec: {volumeSnapshotClassName: %[3]s, source: {persistentVolumeClaimName: %[2]s}}
`, name, claimed, release))
		}
	}
}

// awaitSnapshots waits for the snapshots of startSnapshots.
func (w *workload) awaitSnapshots(name string) {
	w.Helper()
	w.until("snapshots of "+name, func(ctx context.Context) error {
		list, err := testCluster.Dynamic.Resource(snapshots).Namespace(w.name).List(ctx, metav1.ListOptions{LabelSelector: "of=" + name})
		if err != nil {
			return err
		}
		if len(list.Items) != 4 {
			return fmt.Errorf("got %d, want 4", len(list.Items))
		}
		for _, o := range list.Items {
			if status, _ := o.Object["status"].(map[string]any); status["readyToUse"] != true {
				return fmt.Errorf("%s is not ready: %v", o.GetName(), status)
			}
		}
		return nil
	})
}

// deleteOthers requests the deletion of all of them; awaitOthersDeleted waits
// for it.
func (w *workload) deleteOthers(name string) {
	w.Helper()
	w.kubectl("delete", "volumesnapshots.snapshot.storage.k8s.io,pods,pvc", "-l", "of="+name, "--wait=false")
}

func (w *workload) awaitOthersDeleted(name string) {
	w.Helper()
	w.until("deletion of "+name, func(ctx context.Context) error {
		all, err := testCluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range all.Items {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == w.name && strings.HasPrefix(v.Spec.ClaimRef.Name, name) {
				return fmt.Errorf("volume %s of claim %s is not deleted", v.Name, v.Spec.ClaimRef.Name)
			}
		}
		contents, err := testCluster.Kubectl(ctx, "", "get", "volumesnapshotcontents.snapshot.storage.k8s.io", "-o", "jsonpath={.items[*].spec.volumeSnapshotRef.name}")
		if err != nil {
			return err
		}
		if strings.Contains(contents, name+"-of-") {
			return fmt.Errorf("snapshots are not deleted: %s", contents)
		}
		return nil
	})
}

// podsReady returns an error unless every pod of a release exists and is ready.
func podsReady(ctx context.Context, name string) error {
	pods, err := testCluster.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + name + notPlacement})
	if err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("release %s has no pod", name)
	}
	for _, p := range pods.Items {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if !ready || p.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is not ready: %s", p.Name, p.Status.Phase)
		}
	}
	return nil
}
