package inventory

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

type configDocument struct {
	ResourceList *strictjson.Value `json:"resourceList"`
}

type configResource struct {
	Resource
	Selectors *strictjson.Value `json:"selectors"`
}

func (r *configReader) document(root *strictjson.Value, prefix string) []Resource {
	if root.Kind != strictjson.Object {
		r.fail(root, "", "the document is %s, want an object: {\"resourceList\": [...]}", root.Kind)
		return nil
	}
	var d configDocument
	path := r.decode(root, "", &d, "")["resourceList"].path
	list := cmp.Or(d.ResourceList, root)
	if d.ResourceList != nil && list.Kind != strictjson.List {
		r.fail(list, path, "it is %s, want a list of resources", list.Kind)
		return nil
	}
	if len(list.Items) == 0 {
		r.warn(NothingToDo, list, "resourceList", "there is no resource: nothing will be advertised")
		return nil
	}
	var all []Resource
	for i, item := range list.Items {
		if res, ok := r.resource(item, fmt.Sprintf("resourceList[%d]", i), prefix); ok {
			res.Index = i
			all = append(all, res)
		}
	}
	r.unique(list, all)
	return all
}

// ok is false if the element is unusable.
func (r *configReader) resource(v *strictjson.Value, path, prefix string) (Resource, bool) {
	if v.Kind != strictjson.Object {
		r.fail(v, path, "it is %s, want an object with resourceName and selectors", v.Kind)
		return Resource{}, false
	}
	// The operator and upstream's documentation write this internal field of
	// upstream.
	v.Members = slices.DeleteFunc(v.Members, func(m strictjson.Member) bool {
		return m.Value.Kind == strictjson.Null && (strings.EqualFold(m.Key.Text, "SelectorObj") || strings.EqualFold(m.Key.Text, "SelectorObjs"))
	})
	before := len(r.problems)
	var c configResource
	fields := r.decode(v, path, &c, "")
	res := c.Resource
	res.Prefix, res.Type = cmp.Or(res.Prefix, prefix), cmp.Or(res.Type, NetDevice)
	r.checkDeviceType(fields["deviceType"], res.Type)
	r.checkInfo(fields["additionalInfo"], res.Type)
	if _, failed := failure(r.problems[before:]); failed {
		return Resource{}, false
	}
	var ok bool
	if c.Selectors == nil {
		res.Selectors, ok = r.unfiltered(v, strictjson.Join(path, "selectors"), res.Type)
	} else {
		res.Selectors, ok = r.selectors(c.Selectors, fields["selectors"].path, res.Type)
	}
	return res, ok && r.checkName(v, fields["resourceName"], path, res)
}

// Upstream documents selectors as optional, but crashes without them.
func (r *configReader) unfiltered(v *strictjson.Value, path string, t DeviceType) ([]Selector, bool) {
	if t == AuxNetDevice {
		r.fail(v, path, "there are no selectors, want at least [{\"auxTypes\": [\"sf\"]}]")
		return nil, false
	}
	r.warn(Unfiltered, v, path, "there are no selectors: all devices of type %s match; write \"selectors\": [{}] if that is wanted", t)
	return []Selector{{}}, true
}

func (r *configReader) checkDeviceType(f configField, t DeviceType) {
	var known []string
	for _, k := range DeviceTypes() {
		known = append(known, string(k))
	}
	if f.Value != nil && f.Kind == strictjson.String && !slices.Contains(known, string(t)) {
		r.fail(f.Value, f.path, "there is no device type %q; %s", t, proposal(string(t), known))
	}
}

func proposal(word string, known []string) string {
	if near := strictjson.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "want one of " + strings.Join(known, ", ")
}

func (r *configReader) checkInfo(f configField, t DeviceType) {
	if f.Value == nil {
		return
	}
	hint := ""
	if t == AuxNetDevice {
		hint = ", that of the auxiliary device's parent"
	}
	for _, m := range f.Members {
		if device := m.Key.Text; device != "*" && !isAddress(device) {
			r.warn(NoEffect, m.Key, fmt.Sprintf("%s[%q]", f.path, device), "%q is no device: want \"*\" or a PCI address such as 0000:3b:02.1%s", device, hint)
		}
	}
}

// Like upstream, a resource that the kubelet would refuse does not prevent the
// others from being served.
func (r *configReader) checkName(v *strictjson.Value, name configField, path string, res Resource) (served bool) {
	path = strictjson.Join(path, "resourceName")
	if name.Value == nil {
		r.fail(v, path, "it is missing")
		return false
	}
	if !resourceName.MatchString(res.Name) {
		r.fail(name.Value, path, "%q is not a valid resource name, want letters, digits, - and _", res.Name)
		return false
	}
	if why := refusedByKubelet(res); why != "" {
		r.warn(DroppedResource, name.Value, path, "the kubelet refuses %q: %s; the resource is left out", res.FullName(), why)
		return false
	}
	if strings.Contains(res.Name, "-") {
		r.warn(Surprising, name.Value, path, "the hyphen of %q stays in the name of the environment variable %s, which a shell cannot read", res.Name, res.EnvVariable())
	}
	return true
}

var (
	resourceName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	domainName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	endsAlnum    = regexp.MustCompile(`^[a-zA-Z0-9].*[a-zA-Z0-9]$|^[a-zA-Z0-9]$`)
)

func refusedByKubelet(res Resource) string {
	switch {
	case !domainName.MatchString(res.Prefix) || len("requests."+res.Prefix) > 253:
		return fmt.Sprintf("its prefix %q is not a lower-case domain such as example.com", res.Prefix)
	case strings.HasSuffix(res.Prefix, "kubernetes.io") || strings.HasPrefix(res.FullName(), "requests."):
		return "kubernetes.io and requests. are reserved"
	case !endsAlnum.MatchString(res.Name) || len(res.Name) > 63:
		return "want at most 63 characters, a letter or digit first and last"
	}
	return ""
}

// unique reports duplicate names, and names with the same environment variable.
func (r *configReader) unique(list *strictjson.Value, all []Resource) {
	names, variables := map[string]Resource{}, map[string]Resource{}
	for _, res := range all {
		at, path := list.Items[res.Index], fmt.Sprintf("resourceList[%d].resourceName", res.Index)
		if other, twice := names[res.FullName()]; twice {
			r.fail(at, path, "%q is the name of resourceList[%d] already; give one of them another name, or list both selectors in one resource", res.FullName(), other.Index)
			continue
		}
		names[res.FullName()] = res
		if other, twice := variables[res.EnvVariable()]; twice {
			r.warn(Surprising, at, path, "%q and %q (resourceList[%d]) are in the same environment variable %s: a container that has both sees one", res.FullName(), other.FullName(), other.Index, res.EnvVariable())
			continue
		}
		variables[res.EnvVariable()] = res
	}
}
