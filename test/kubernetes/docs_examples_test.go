package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/deploy/image/oci"
	tables "github.com/cleatproject/cleat/internal/markdown"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

// pages are the pages with Kubernetes examples.
var pages = []string{"README.md", "docs/start-local.md", "docs/start-fence.md", "docs/install.md", "docs/day2.md", "docs/troubleshooting.md", "docs/monitoring.md"}

func page(t *testing.T, name string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join("../..", name)))(t)
	return string(text)
}

// reader runs the examples of the pages in a namespace, with files in its own
// directory.
type reader struct {
	*space
	dir string
	env []string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{space: newSpace(t), dir: t.TempDir()}
	config := testkit.Value(os.ReadFile(testCluster.Kubeconfig))(t)
	r.write("kubeconfig", string(config))
	own := filepath.Join(r.dir, "kubeconfig")
	testkit.Value(testCluster.Kubectl(t.Context(), "", "--kubeconfig="+own, "config", "set-context", "--current", "--namespace="+r.name))(t)
	r.env = append(os.Environ(), "KUBECONFIG="+own, "HOME="+r.dir, "PATH="+testCluster.Programs.Dir+":"+os.Getenv("PATH"))
	return r
}

func (r *reader) write(name, text string) {
	r.Helper()
	testkit.Must(r, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
}

// sh runs lines in a shell with set -e.
func (r *reader) sh(lines ...string) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", strings.Join(lines, "\n"))
	cmd.Env, cmd.Dir = r.env, r.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("%v:\n%s\nafter\n%s", err, out, strings.Join(lines, "\n"))
	}
	return string(out)
}

// blocks returns the code blocks of a section and checks their number.
func (r *reader) blocks(name, section, language string, count int) []string {
	r.Helper()
	all := markdown.Blocks(markdown.Section(page(r.T, name), section), language)
	if len(all) != count {
		r.Fatalf("section %s of %s has %d blocks of %s, want %d", section, name, len(all), language, count)
	}
	return all
}

// classes creates the classes of a release cleat for the test's driver, and the
// image named in the examples.
func (r *reader) classes() {
	r.Helper()
	rendered := testkit.Value(testCluster.Helm(r.Context(), "template", "cleat", chart, "--show-only", "templates/csi-classes.yaml",
		"--set", "csi.snapshots.enabled=true", "--api-versions", "snapshot.storage.k8s.io/v1"))(r)
	r.Cleanup(func() {
		if _, err := testCluster.Kubectl(context.Background(), rendered, "delete", "--ignore-not-found", "-f", "-"); err != nil {
			r.Error(err)
		}
	})
	testkit.Must(r, testCluster.Apply(r.Context(), rendered))
	busybox := testkit.Value(cluster.BusyboxImage(r.Context(), "docker.io/library/busybox:1.36", "/bin/sh"))(r)
	archive := filepath.Join(r.dir, "busybox.tar")
	testkit.Must(r, cluster.WriteImages(archive, []oci.Image{busybox}...))
	testkit.Must(r, testCluster.Import(r.Context(), archive))
}

// app is a workload with the claim of the examples.
const app = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: app
        image: busybox:1.36
        command: [sleep, infinity]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
`

// The examples of the pages work unchanged: first claim and pod, snapshot,
// backup, move and expansion of a volume.
func TestDocsExamples(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	r.classes()
	r.firstClaim()
	r.backUp()
	// A snapshot is kept while a claim waits to be restored from it.
	r.sh("kubectl delete pvc data-of-monday", "kubectl delete volumesnapshot monday --timeout=2m")
	r.sh("kubectl delete pod shell --grace-period=1", "kubectl apply -f - <<'END'"+app+"END", "kubectl rollout status deployment/app --timeout=3m")
	r.move()
	r.sh(r.blocks("docs/day2.md", "Expand", "sh", 1)...)
	if size := r.fileOf("data").Size(); size != 2<<30 {
		t.Errorf("the volume's file has %d bytes after the expansion", size)
	}
	r.sh("kubectl delete deployment app --wait")
	for _, block := range markdown.Blocks(page(t, "README.md"), "yaml") {
		r.sh("kubectl delete pvc data --ignore-not-found")
		r.sh("kubectl apply -f - <<'END'\n" + block + "END\nkubectl wait --for=condition=Ready pod/shell --timeout=3m")
	}
}

func (r *reader) firstClaim() {
	r.Helper()
	objects := r.blocks("docs/start-local.md", "First claim and pod", "yaml", 2)
	r.write("first.yaml", objects[0])
	out := r.sh(r.blocks("docs/start-local.md", "First claim and pod", "sh", 1)...)
	if !strings.Contains(out, "/data") || !strings.Contains(out, "Bound") {
		r.Errorf("the first volume:\n%s", out)
	}
	r.sh("until kubectl exec shell -- test -s /data/log; do sleep 1; done") // a pod is ready before its command has written
	r.sh("kubectl apply -f - <<'END'\n" + objects[1] + "END\nkubectl wait volumesnapshot/monday --for=jsonpath='{.status.readyToUse}'=true --timeout=3m")
}

// backUp copies the snapshot's content into a file.
func (r *reader) backUp() {
	r.Helper()
	r.sh("kubectl apply -f - <<'END'\n" + r.blocks("docs/day2.md", "Back up", "yaml", 1)[0] + "END")
	r.sh(r.blocks("docs/day2.md", "Back up", "sh", 1)...)
	if out := r.sh("tar -tzf monday.tgz"); !strings.Contains(out, "./log\n") {
		r.Errorf("got backup\n%s", out)
	}
}

// move runs the steps one by one, with both ways to copy; the new volume then
// has the old one's name and content.
func (r *reader) move() {
	r.Helper()
	const section = "Move a volume to another node"
	steps := r.blocks("docs/day2.md", section, "sh", 5)
	// Directory times change when entries are created.
	const state = "kubectl exec deploy/app -- sh -c 'cd /data; find . -exec stat -c \"%n %F %a %u %g\" {} + | sort; find . -type f -exec stat -c \"%n %s %Y\" {} + | sort; find . -type f -exec sha256sum {} + | sort'"
	r.sh("kubectl exec deploy/app -- sh -c 'cd /data; mkdir -p a/b; head -c 9000000 /dev/urandom >a/b/c; ln -s c a/b/d; chown 7:8 a/b/c; chmod 4751 a/b/c; sync'")
	before, old := r.sh(state), r.bound("data").Name
	r.sh(steps[0])
	r.sh("kubectl apply -f - <<'END'\n" + r.blocks("docs/day2.md", section, "yaml", 1)[0] + "END")
	r.sh(steps[1])
	r.sh("kubectl exec move-to -- rm -rf /data/a")
	r.sh(steps[2])
	r.sh(steps[1]) // compares the volumes
	r.sh(steps[3], "kubectl rollout status deployment/app --timeout=3m", steps[4])
	moved := r.bound("data")
	if after := r.sh(state); after != before {
		r.Errorf("content before the move\n%s\nand after\n%s", before, after)
	}
	if moved.Name == old {
		r.Errorf("the claim still has volume %s", old)
	}
	r.until("deletion of the old volume", func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().PersistentVolumes().Get(ctx, old, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not deleted (%v)", err)
	})
}

// The API server accepts every object of the pages, without unknown fields.
func TestDocsObjects(t *testing.T) {
	t.Parallel()
	s, count := newSpace(t), 0
	for _, name := range pages {
		for _, block := range markdown.Blocks(page(t, name), "yaml") {
			if !strings.Contains(block, "apiVersion:") {
				continue
			}
			count++
			if _, err := testCluster.Kubectl(t.Context(), block, "-n", s.name, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, block)
			}
		}
	}
	if count < 5 {
		t.Errorf("found only %d blocks with objects", count)
	}
}

var (
	flags = regexp.MustCompile(`(?:^|\s)(--[a-z][a-z-]*|-[a-zA-Z])(?:[\s=]|$)`)
	ends  = regexp.MustCompile(`\||&&|;|\$\(|\)| -- | <<|'\{[^']*\}'`)
	cli   = regexp.MustCompile(`^(?:sudo )?(kubectl|helm) (.*)$`)
)

// invocations returns the kubectl and Helm calls of a page, without pipes.
func invocations(text string) []string {
	lines := tables.Spans(text)
	for _, block := range markdown.Blocks(text, "sh") {
		lines = append(lines, strings.Split(block, "\n")...)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "    ") {
			line, _, _ = strings.Cut(line, " #")
			lines = append(lines, line)
		}
	}
	var all []string
	for _, line := range lines {
		for _, part := range ends.Split(line, -1) {
			if part = strings.TrimSpace(part); cli.MatchString(part) {
				all = append(all, part)
			}
		}
	}
	return all
}

// The kubectl and Helm commands and flags in the pages exist.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	// Command words before the flags; other commands have one word.
	twoWords := []string{"rollout", "config", "create"}
	help := map[string]string{}
	ask := func(program string, words []string) string {
		key := program + " " + strings.Join(words, " ")
		if key == "kubectl cleat" { // the plugin
			if help[key] == "" {
				out, err := exec.CommandContext(t.Context(), filepath.Join(testCluster.Dir, "bin", "cleat"), "kubectl", "why", "--help").Output()
				if help[key] = string(out); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
			return help[key]
		}
		if help[key] == "" {
			run := testCluster.Helm
			var options string
			var err error
			if program == "kubectl" {
				run = func(ctx context.Context, args ...string) (string, error) {
					return testCluster.Kubectl(ctx, "", args...)
				}
				options = testkit.Value(run(t.Context(), "options"))(t)
			}
			own, err := run(t.Context(), append(slices.Clone(words), "--help")...)
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
			if !strings.Contains(own, "Usage:") || !strings.Contains(own, program+" "+words[0]) {
				t.Errorf("%s has no command %v", program, words)
			}
			help[key] = own + options
		}
		return help[key]
	}
	count := 0
	for _, name := range pages {
		for _, line := range invocations(page(t, name)) {
			found := cli.FindStringSubmatch(line)
			rest := regexp.MustCompile(`^(?:-n \S+ )+`).ReplaceAllString(found[2], "")
			words := strings.Fields(rest)
			if len(words) == 0 || strings.HasPrefix(words[0], "-") || !regexp.MustCompile(`^[a-z-]+$`).MatchString(words[0]) {
				continue // only the command's name
			}
			if slices.Contains(twoWords, words[0]) && len(words) > 1 {
				words = words[:2]
			} else {
				words = words[:1]
			}
			count++
			text := ask(found[1], words)
			if slices.Equal(words, []string{"create", "secret"}) {
				text += ask(found[1], []string{"create", "secret", "generic"})
			}
			for _, flag := range flags.FindAllStringSubmatch(found[2], -1) {
				if !regexp.MustCompile(`(?m)(^|[\s,])` + regexp.QuoteMeta(flag[1]) + `([\s,=:]|$)`).MatchString(text) {
					t.Errorf("%s: %s %v has no flag %s, in: %s", name, found[1], words, flag[1], line)
				}
			}
		}
	}
	if count < 60 {
		t.Errorf("found only %d calls", count)
	}
}

// Messages in the tables of symptoms exist in the programs.
func TestDocsMessages(t *testing.T) {
	t.Parallel()
	says := map[string]string{
		"scheduler": "kube-scheduler", "controller manager": "kube-controller-manager", "API server": "kube-apiserver", "kubelet": "kubelet",
		"csi-provisioner": "csi-provisioner", "csi-resizer": "csi-resizer", "csi-snapshotter": "csi-snapshotter", "snapshot-controller": "snapshot-controller",
		"csi-addons sidecar": "csi-addons-sidecar", "csi-addons manager": "csi-addons-manager", "helm": "helm", "containerd": "containerd",
	}
	messages := map[string][]string{}
	for _, row := range tables.Rows(page(t, "docs/troubleshooting.md")) {
		switch who := row["who"]; {
		case says[who] != "":
			messages[who] = append(messages[who], tables.Spans(row["message"])...)
		case who != "" && who != "driver" && who != "chart" && who != "cleat-csi-placement": // other texts are checked next to their page
			t.Errorf("unknown component %q of message %q", who, row["message"])
		}
	}
	if len(messages) < 8 {
		t.Errorf("found messages only of %v", slices.Sorted(maps.Keys(messages)))
	}
	for who, all := range messages {
		path := testCluster.Programs.Path(says[who])
		if who == "containerd" {
			path = testkit.Value(exec.LookPath(who))(t)
		}
		program := testkit.Value(os.ReadFile(path))(t)
		for _, message := range all {
			for _, part := range tables.Parts(message) {
				if !bytes.Contains(program, []byte(part)) {
					t.Errorf("the %s has no text %q of %q", who, part, message)
				}
			}
		}
	}
}
