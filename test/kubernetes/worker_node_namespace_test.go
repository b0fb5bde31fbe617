package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// namespaceDeleted deletes a namespace with 50 claims on two nodes, pods and a
// snapshot, all at once. The volumes and the snapshot are deleted from both
// pools, without help.
func (s *twoNodes) namespaceDeleted() {
	n := newSpace(s.T)
	nodes := []string{testCluster.Node, s.added.Name}
	var files []string
	for i := range 50 {
		n.claim(fmt.Sprintf("claim-%d", i), claim{class: "pair-ext4", size: "16Mi", node: nodes[i%2]})
	}
	for i := range 4 {
		n.start(fmt.Sprintf("pod-%d", i), pod{mounts: map[string]string{"/data": fmt.Sprintf("claim-%d", i)}, change: on(nodes[i%2])})
	}
	for i := range 50 {
		files = append(files, s.fileOn(nodes[i%2], fileOf(n.bound(fmt.Sprintf("claim-%d", i)))))
	}
	for i := range 4 {
		n.running(fmt.Sprintf("pod-%d", i))
	}
	n.snapshot("snapshot", "pair", "claim-0")
	_, snapshot := n.content(pairDriver, "snapshot")
	files = append(files, snapshot)
	for _, file := range files {
		testkit.Value(os.Stat(file))(s)
	}

	began := time.Now()
	testkit.Must(s, testCluster.Client.CoreV1().Namespaces().Delete(s.Context(), n.name, metav1.DeleteOptions{}))
	s.until("deletion of the namespace", func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().Namespaces().Get(ctx, n.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return n.volumesGone(ctx)
		}
		return errors.Join(errors.New("the namespace exists"), err)
	})
	for _, file := range files {
		s.awaitDeleted(file)
	}
	s.Logf("the namespace and its 50 volumes are deleted after %.1f s", time.Since(began).Seconds())
}

// awaitDeleted waits until a file is deleted.
func (s *twoNodes) awaitDeleted(file string) {
	s.Helper()
	s.until("deletion of "+file, func(context.Context) error {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			return errors.Join(errors.New("the file exists"), err)
		}
		return nil
	})
}

// fileOn returns this process's path of a file on one of the nodes.
func (s *twoNodes) fileOn(node, path string) string {
	if node == s.added.Name {
		return s.added.Path(path)
	}
	return filepath.Clean(path)
}
