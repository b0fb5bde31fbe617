package node

import (
	_ "embed"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/testkit"
)

//go:embed labels.cil
var labelPolicy []byte

const (
	labelOfPod   = "system_u:object_r:container_file_t:s0:c1,c2"
	labelOfOther = "system_u:object_r:container_file_t:s0:c1,c3"
)

// testLabels verifies SELinux labels as the kubelet passes them for a driver
// with seLinuxMount: an option of the mount, with quotes. btrfs takes none before
// Linux 6.8.
func testLabels(r *rig, labelsBtrfs bool) {
	r.enforceLabels()
	for _, fsType := range []string{"xfs", "ext4", "btrfs"} {
		c := r.create("labelled-"+fsType, fsType).labelled(labelOfPod)
		c.Capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		if fsType == "btrfs" && !labelsBtrfs {
			r.refused(c.stage(), codes.FailedPrecondition, "SELinux label", "Linux 6.8", "seLinuxMount")
			c.labelled("").attach().drop()
			continue
		}
		c.attach()
		c.write(1)
		c.admitsOnly(labelOfPod)
		c.keepsLabel()
		c.refusesLabels()
		c.takesLabel(labelOfOther)
		c.drop()
	}
	inline := r.claim("labelled-inline", "ext4", &csi.Volume{VolumeId: "csi-labelled", VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "size": "32Mi",
	}}).labelled(labelOfPod)
	inline.Staging = ""
	testkit.Must(r, inline.publish())
	inline.write(1)
	inline.admitsOnly(labelOfPod)
	testkit.Must(r, inline.unpublish())
}

// enforceLabels loads the policy into the guest's SELinux, which is off before.
func (r *rig) enforceLabels() {
	r.Helper()
	testkit.Must(r, r.Guest.WriteFile(r.Context(), "/run/labels.cil", labelPolicy, 0o600))
	r.Run("secilc", "-c", "33", "-o", "/run/labels.33", "-f", "/dev/null", "/run/labels.cil")
	r.Run("mount", "-t", "selinuxfs", "none", "/sys/fs/selinux")
	r.Run("dd", "if=/run/labels.33", "of=/sys/fs/selinux/load", "bs=1M") // in one write
	r.Write("/sys/fs/selinux/enforce", "1")
}

// labelled sets the mount flags that the kubelet passes for a label.
func (c *claim) labelled(label string) *claim {
	c.Capability.GetMount().MountFlags = nil
	if label != "" {
		c.Capability.GetMount().MountFlags = []string{"noatime", `context="` + label + `"`}
	}
	return c
}

// admitsOnly verifies the label of all mounts and files, and that only a pod
// with its categories can use them.
func (c *claim) admitsOnly(label string) {
	c.Helper()
	mounts := 0
	for line := range strings.Lines(c.Read("/proc/mounts")) {
		if strings.Contains(line, "/"+c.name+"/") {
			mounts++
			if !strings.Contains(line, `context="`+label+`"`) {
				c.Errorf("mounted without label %s: %s", label, line)
			}
		}
	}
	want := 2
	if c.Staging == "" {
		want = 1
	}
	if mounts != want {
		c.Errorf("%s: %d mounts, want %d", c.name, mounts, want)
	}
	for _, path := range []string{c.Target, c.file()} {
		if got := c.Run("stat", "-c", "%C", path); got != label {
			c.Errorf("%s has label %s, want %s", path, got, label)
		}
	}
	for _, of := range []string{labelOfPod, labelOfOther} {
		_, err := c.asPod(of, "echo line >> "+c.file())
		if admitted := err == nil; admitted != (of == label) {
			c.Errorf("a pod of %s writes to a volume with label %s: %v", of, label, err)
		}
	}
}

// asPod runs a shell command in the domain of containers, with the categories of a label.
func (c *claim) asPod(label, command string) (string, error) {
	domain := strings.Replace(label, "object_r:container_file_t", "system_r:container_t", 1)
	return c.Try("sh", "-c", `echo -n "$0" > /proc/self/attr/exec && exec /usr/bin/busybox sh -c "$1"`, domain, command)
}

// keepsLabel verifies the label after a growth, and after the staging mount was
// lost: the kernel mounts the file system again, below the pod's mount, if the
// label is the same.
func (c *claim) keepsLabel() {
	c.Helper()
	second := *c.Volume
	second.Target += "-2"
	testkit.Must(c, c.stage())
	testkit.Must(c, c.Publish(&second))
	testkit.Must(c, c.Unpublish(&second))
	c.grow(c, 12*mib)
	testkit.Must(c, c.Expand(c.Volume, 0))
	c.Run("umount", c.Staging)
	testkit.Must(c, c.stage())
	c.admitsOnly(labelOfPod)
}

// refusesLabels verifies the refusals of a volume in use, and then of labels that
// the policy does not have, or does not let the driver give.
func (c *claim) refusesLabels() {
	c.Helper()
	for _, label := range []string{labelOfOther, ""} {
		c.labelled(label)
		c.refused(c.stage(), codes.AlreadyExists, "mount flags", "SELinux")
		c.refused(c.publish(), codes.AlreadyExists, "mount flags", "SELinux")
	}
	second := *c.Volume
	second.Target += "-2"
	c.labelled(labelOfOther)
	c.refused(c.Publish(&second), codes.FailedPrecondition, "mount flags", "SELinux")
	testkit.Must(c, c.unpublish())
	device := c.Run("findmnt", "-no", "SOURCE", c.Staging)
	c.Run("sh", "-c", `exec 3<"$0"; umount "$1" && mount -t "$2" -o "$3" "$0" /mnt`, device, c.Staging, c.fsType, `context="`+labelOfOther+`"`) // open, the device stays attached
	c.labelled(labelOfPod)
	c.refused(c.stage(), codes.FailedPrecondition, "another SELinux label")
	c.Run("umount", "/mnt")
	testkit.Must(c, c.unstage())
	c.labelled("system_u:object_r:unknown_t:s0")
	c.refused(c.stage(), codes.InvalidArgument, "mount option context", "SELinux", "policy")
	c.labelled("system_u:object_r:host_file_t:s0")
	c.refused(c.stage(), codes.FailedPrecondition, "permission denied", "SELinux", "spc_t")
}

// takesLabel: the next pod's label replaces the last one's.
func (c *claim) takesLabel(label string) {
	c.Helper()
	c.labelled(label).attach().admitsOnly(label)
}
