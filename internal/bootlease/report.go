package bootlease

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cleatproject/cleat/internal/machineid"
)

// report is the content of a Lease.
type report struct {
	boot, machine string
	late          bool
	transitions   int64
}

// after returns what a node writes over its last report, the zero one if none.
func (r report) after(last report) report {
	r.late, r.transitions = true, last.transitions
	if last.boot != "" && last.machine != r.machine {
		r.transitions++
	}
	return r
}

func (r report) isOf(own report) bool { return r.boot == own.boot && r.machine == own.machine }

func reportOf(o unstructured.Unstructured) (r report) {
	r.boot, _, _ = unstructured.NestedString(o.Object, "spec", "holderIdentity")
	r.transitions, _, _ = unstructured.NestedInt64(o.Object, "spec", "leaseTransitions")
	r.machine = o.GetAnnotations()[machineAnnotation]
	r.late = o.GetAnnotations()[lateAnnotation] != ""
	return r
}

// writeTo keeps other labels and annotations.
func (r report) writeTo(o *unstructured.Unstructured, prefix string) error {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels["app.kubernetes.io/managed-by"], labels[prefixLabel] = "cleat", prefix
	annotations[machineAnnotation] = r.machine
	delete(annotations, lateAnnotation)
	if r.late {
		annotations[lateAnnotation] = "true"
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return unstructured.SetNestedMap(o.Object, map[string]any{"holderIdentity": r.boot, "leaseTransitions": r.transitions}, "spec")
}

var (
	machineIDPattern   = regexp.MustCompile(`^[0-9a-f]{32}$`)
	productUUIDPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// readMachine reads boot and machine below a root directory, normally /. The
// machine is "" unless both ids are known, and no placeholders: machines that were
// cloned have the same machine-id, some boards the same product_uuid. In a pod with the host's PIDs,
// process 1 has the host's files.
func readMachine(root string) (r report, err error) {
	read := func(path string) string {
		text, failed := os.ReadFile(filepath.Join(root, path))
		if failed != nil {
			return ""
		}
		return strings.ToLower(strings.TrimSpace(string(text)))
	}
	const bootID = "proc/sys/kernel/random/boot_id"
	if r.boot = read(bootID); r.boot == "" {
		return r, fmt.Errorf("the boot id in /%s cannot be read", bootID)
	}
	machineID, productUUID := read(filepath.Join("proc", "1", "root", "etc", "machine-id")), read("sys/class/dmi/id/product_uuid")
	areIDs := machineIDPattern.MatchString(machineID) && productUUIDPattern.MatchString(productUUID)
	if areIDs && machineid.IsUnique(machineID) && machineid.IsUnique(productUUID) {
		sum := sha256.Sum256([]byte(machineID + "/" + productUUID))
		r.machine = hex.EncodeToString(sum[:16])
	}
	return r, nil
}
