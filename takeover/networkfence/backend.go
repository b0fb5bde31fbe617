package networkfence

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/takeover"
)

const (
	group = "csiaddons.openshift.io"

	// Of the objects that this package creates.
	ownerLabel        = "remediation.cleat.dev/remediation"
	backendAnnotation = "remediation.cleat.dev/backend"
	classAnnotation   = "remediation.cleat.dev/class-uid"
	blocksAnnotation  = "remediation.cleat.dev/cidrs"
	voidAnnotation    = "remediation.cleat.dev/void" // released, replaced, or a text of older releases
	released          = "the remediation does not need this fence any more"
	replaced          = "the remediation needs another proof of this fence"
	finalizer         = "remediation.cleat.dev/takeover"

	// Of CSI-Addons.
	managerFinalizer = "csiaddons.openshift.io/network-fence"
)

var (
	fenceResource = schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "networkfences"}
	classResource = schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "networkfenceclasses"}
	nodeResource  = schema.GroupVersionResource{Group: group, Version: "v1alpha1", Resource: "csiaddonsnodes"}
)

// Backend fences by the driver of a NetworkFenceClass.
type Backend struct {
	Client dynamic.Interface
	Name   string // of the backend
	Class  string
}

// class is a NetworkFenceClass.
type class struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Provisioner string `json:"provisioner"`
	} `json:"spec"`
}

// networkFence is a NetworkFence.
type networkFence struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Class      string   `json:"networkFenceClassName"`
		Driver     string   `json:"driver"`
		FenceState string   `json:"fenceState"`
		Cidrs      []string `json:"cidrs"`
	} `json:"spec"`
	Status struct {
		Result  string `json:"result"`
		Message string `json:"message"`
	} `json:"status"`
}

// addonsNode is a CSIAddonsNode.
type addonsNode struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Driver struct {
			Name   string `json:"name"`
			NodeID string `json:"nodeID"`
		} `json:"driver"`
	} `json:"spec"`
	Status struct {
		Classes []struct {
			Clients []struct {
				Cidrs []string `json:"cidrs"`
			} `json:"ClientDetails"`
		} `json:"networkFenceClientStatus"`
	} `json:"status"`
}

func list[T any](ctx context.Context, client dynamic.Interface, of schema.GroupVersionResource) ([]*T, error) {
	all, err := kubeobject.List[T](ctx, client, of, "", metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errs.Errorf(errs.Unavailable, "the cluster has no resource %s.%s %s: install the CustomResourceDefinitions of CSI-Addons", of.Resource, of.Group, of.Version)
	}
	return all, err
}

// classes returns the backend's class, and the drivers of all classes.
func (b Backend) classes(ctx context.Context) (own *class, drivers map[string]string, err error) {
	all, err := list[class](ctx, b.Client, classResource)
	if err != nil {
		return nil, nil, err
	}
	drivers = map[string]string{}
	for _, c := range all {
		if drivers[c.Name] = c.Spec.Provisioner; c.Name == b.Class {
			own = c
		}
	}
	if own == nil {
		return nil, nil, errs.Errorf(errs.Unavailable, "NetworkFenceClass %s does not exist", b.Class)
	}
	return own, drivers, nil
}

// read returns the objects of the backend's driver; of a class that does not exist
// the driver is not known.
func (b Backend) read(ctx context.Context, owner string) ([]Object, *class, error) {
	own, drivers, err := b.classes(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := list[networkFence](ctx, b.Client, fenceResource)
	if err != nil {
		return nil, nil, err
	}
	var objects []Object
	for _, f := range all {
		driver, known := f.Spec.Driver, true
		if f.Spec.Class != "" {
			driver, known = drivers[f.Spec.Class]
		}
		o := b.object(f, owner, own)
		if o.Number > 0 && o.Deleting && !o.Pending && !slices.Contains(f.Finalizers, finalizer) {
			continue // dropped
		}
		if o.Number > 0 || o.Foreign || driver == own.Spec.Provisioner || !known {
			objects = append(objects, o)
		}
	}
	return objects, own, nil
}

// object is what decisions need of f.
func (b Backend) object(f *networkFence, owner string, own *class) Object {
	o := Object{
		Name: f.Name, Version: f.ResourceVersion, Fenced: f.Spec.FenceState != "Unfenced", Deleting: f.DeletionTimestamp != nil, Pending: slices.Contains(f.Finalizers, managerFinalizer),
		Result: f.Status.Result, Message: f.Status.Message,
	}
	for _, text := range f.Spec.Cidrs {
		block, err := netip.ParsePrefix(strings.TrimSpace(text))
		if a, addrErr := netip.ParseAddr(strings.TrimSpace(text)); addrErr == nil {
			block, err = single(a), nil
		}
		if err != nil { // it could be any
			o.Blocks = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
			break
		}
		o.Blocks = append(o.Blocks, block.Masked())
	}
	o.Void, o.Released = f.Annotations[voidAnnotation] != "", f.Annotations[voidAnnotation] == released
	label, recorded := f.Labels[ownerLabel], f.Annotations[blocksAnnotation]
	number, named := strings.CutPrefix(f.Name, b.prefix(owner))
	if !named {
		if o.Cleat = label != "" && label != owner && strings.HasPrefix(f.Name, "cleat-"+label+"-"); o.Cleat {
			o.Blocks = append(o.Blocks, parseBlocks(recorded)...)
		}
		return o
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || label != owner {
		o.Foreign = true
		return o
	}
	o.Number = n
	created := int64(1)
	if o.Deleting { // which is a generation too
		created = 2
	}
	switch {
	case f.Generation != created:
		o.Changed = fmt.Sprintf("it has generation %d", f.Generation)
	case f.Spec.Class != b.Class || f.Annotations[classAnnotation] != string(own.UID):
		o.Changed = "it has another class"
	case strings.Join(f.Spec.Cidrs, ",") != recorded:
		o.Changed = "it has other cidrs"
	}
	if recorded != "" && o.Changed != "" { // what was fenced first
		o.Blocks = parseBlocks(recorded)
	}
	o.Evidence = fmt.Sprintf("word of driver %s: NetworkFence %s (UID %s, resourceVersion %s, generation 1) of class %s (UID %s) has result %s",
		own.Spec.Provisioner, f.Name, f.UID, f.ResourceVersion, own.Name, own.UID, f.Status.Result)
	return o
}

// parseBlocks reads an annotation of ours.
func parseBlocks(recorded string) (blocks []netip.Prefix) {
	for text := range strings.SplitSeq(recorded, ",") {
		if block, err := netip.ParsePrefix(text); err == nil {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// prefix is that of the names of a remediation's objects.
func (b Backend) prefix(owner string) string {
	return fmt.Sprintf("cleat-%s-%.4x-", owner, sha256.Sum256([]byte(b.Name)))
}

// Fence implements takeover.Backend.
func (b Backend) Fence(ctx context.Context, owner string, addresses []netip.Addr) error {
	return b.change(ctx, owner, func(all []Object) ([]Change, error) { return FenceChanges(all, addresses) })
}

// ReadBack implements takeover.Backend.
func (b Backend) ReadBack(ctx context.Context, owner string, addresses []netip.Addr) (takeover.Fences, error) {
	all, _, err := b.read(ctx, owner)
	if err != nil {
		return takeover.Fences{}, err
	}
	s := Read(all, addresses)
	f := takeover.Fences{Recorded: s.Recorded, Lifted: s.Lifted, Missing: s.Missing, FenceBlocked: s.FenceBlocked, UnfenceBlocked: s.UnfenceBlocked}
	if s.Held {
		f.Held, f.Evidence = addresses, []string{s.Evidence}
	}
	return f, nil
}

// Unfence implements takeover.Backend.
func (b Backend) Unfence(ctx context.Context, owner string, addresses []netip.Addr) error {
	return b.change(ctx, owner, func(all []Object) ([]Change, error) { return UnfenceChanges(all, addresses) })
}

// Forget implements takeover.Backend.
func (b Backend) Forget(ctx context.Context, owner string, addresses []netip.Addr) error {
	return b.change(ctx, owner, func(all []Object) ([]Change, error) { return ForgetChanges(all, addresses) })
}

// change reads all objects, and makes the changes that decide returns, also with an error.
func (b Backend) change(ctx context.Context, owner string, decide func([]Object) ([]Change, error)) error {
	all, own, err := b.read(ctx, owner)
	if err != nil {
		return err
	}
	changes, blocked := decide(all)
	if err := b.apply(ctx, owner, own, changes); err != nil {
		return err
	}
	return blocked
}

// Clients implements takeover.Backend: those that the nodes' sidecars report, while
// their objects exist. They prove nothing about what is missing.
func (b Backend) Clients(ctx context.Context) ([]takeover.Client, error) {
	own, _, err := b.classes(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := list[networkFence](ctx, b.Client, fenceResource); err != nil {
		return nil, err // before anything is fenced
	}
	nodes, err := list[addonsNode](ctx, b.Client, nodeResource)
	if err != nil {
		return nil, err
	}
	var clients []takeover.Client
	for _, n := range nodes {
		if n.Spec.Driver.Name != own.Spec.Provisioner {
			continue
		}
		c := takeover.Client{Node: n.Spec.Driver.NodeID, Reported: true}
		for _, of := range n.Status.Classes {
			for _, client := range of.Clients {
				for _, text := range client.Cidrs {
					if block, err := netip.ParsePrefix(text); err == nil && block.IsSingleIP() {
						c.Addresses = append(c.Addresses, block.Addr())
					} else {
						c.Rejected = append(c.Rejected, text)
					}
				}
			}
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// Servers implements takeover.Backend: the driver is reached through the API server.
func (Backend) Servers(context.Context) ([]netip.Addr, error) { return nil, nil }

// apply makes changes in their order.
func (b Backend) apply(ctx context.Context, owner string, own *class, changes []Change) error {
	fences := b.Client.Resource(fenceResource)
	for _, c := range changes {
		var err error
		switch c.Kind {
		case Create:
			_, err = fences.Create(ctx, b.build(owner, own, c), metav1.CreateOptions{})
		case Release, Delete:
			err = b.void(ctx, owner, c)
		case Drop:
			err = b.drop(ctx, owner, c)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) { // another pass did it
			return fmt.Errorf("NetworkFence %s%s: %w", c.Name, b.nameOf(owner, c), err)
		}
	}
	return nil
}

func (b Backend) nameOf(owner string, c Change) string {
	if c.Kind != Create {
		return ""
	}
	return b.prefix(owner) + strconv.Itoa(c.Number)
}

func (b Backend) build(owner string, own *class, c Change) *unstructured.Unstructured {
	state := "Unfenced"
	if c.Fenced {
		state = "Fenced"
	}
	cidrs, list := make([]string, len(c.Blocks)), make([]any, len(c.Blocks))
	for i, block := range c.Blocks {
		cidrs[i], list[i] = block.String(), block.String()
	}
	if c.Marker {
		list = []any{}
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1", "kind": "NetworkFence",
		// CSI-Addons writes driver and secret when it adds its finalizer: with them that
		// does not change the generation.
		"spec": map[string]any{"networkFenceClassName": b.Class, "fenceState": state, "cidrs": list, "driver": "", "secret": map[string]any{}},
	}}
	u.SetName(b.nameOf(owner, c))
	u.SetLabels(map[string]string{ownerLabel: owner})
	u.SetAnnotations(map[string]string{backendAnnotation: b.Name, classAnnotation: string(own.UID), blocksAnnotation: strings.Join(cidrs, ",")})
	u.SetFinalizers([]string{finalizer})
	return u
}

// void marks an object, and deletes it if c says so. A released one stays released.
func (b Backend) void(ctx context.Context, owner string, c Change) error {
	return b.edit(ctx, owner, c, func(u *unstructured.Unstructured) bool {
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		was := annotations[voidAnnotation]
		switch {
		case c.Kind == Release:
			annotations[voidAnnotation] = released
		case was == "":
			annotations[voidAnnotation] = replaced
		}
		u.SetAnnotations(annotations)
		return annotations[voidAnnotation] != was
	})
}

// drop removes our finalizer, then the object.
func (b Backend) drop(ctx context.Context, owner string, c Change) error {
	return b.edit(ctx, owner, c, func(u *unstructured.Unstructured) bool {
		finalizers := u.GetFinalizers()
		at := slices.Index(finalizers, finalizer)
		if at >= 0 {
			u.SetFinalizers(slices.Delete(finalizers, at, at+1))
		}
		return at >= 0
	})
}

// edit changes the metadata of an object that still has our label, and the version of
// c, and deletes it unless c only releases it.
func (b Backend) edit(ctx context.Context, owner string, c Change, do func(*unstructured.Unstructured) bool) error {
	fences := b.Client.Resource(fenceResource)
	u, err := fences.Get(ctx, c.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if c.Version != "" && u.GetResourceVersion() != c.Version {
		return errs.Errorf(errs.Busy, "it was changed meanwhile")
	}
	if u.GetLabels()[ownerLabel] != owner {
		return errs.Errorf(errs.Precondition, "its label is not that of the remediation any more")
	}
	if do(u) {
		if u, err = fences.Update(ctx, u, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if c.Kind == Release {
		return nil
	}
	uid, version := u.GetUID(), u.GetResourceVersion()
	return fences.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
}
