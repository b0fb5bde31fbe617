package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// resource reads an element of resourceList; false: it cannot be used.
func (r *configReader) resource(n *jsonValue, path, prefix string) (Resource, bool) {
	if n.kind != objectKind {
		r.fail(n, path, "it is %s, want an object with resourceName and selectors", n.kind)
		return Resource{}, false
	}
	before := len(r.errs)
	res := Resource{Prefix: prefix, Type: NetDevice}
	var name, selectors *jsonValue
	selectorsPath := joinPath(path, "selectors")
	r.members(n, path, keysOf(resourceLevel), func(key string, value *jsonValue, path string) {
		if value.kind == nullKind {
			return
		}
		switch key {
		case "resourceName":
			name, res.Name = value, r.text(value, path)
		case "resourcePrefix":
			if own := r.text(value, path); own != "" {
				res.Prefix = own
			}
		case "deviceType":
			res.Type = r.deviceType(value, path)
		case "excludeTopology":
			if value.kind != boolKind {
				r.fail(value, path, "it is %s, want true or false", value.kind)
			}
			res.ExcludeTopology = value.truth
		case "selectors":
			selectors, selectorsPath = value, path
		case "additionalInfo":
			res.AdditionalInfo = r.additional(value, path, res.Type)
		}
	})
	if len(r.errs) > before {
		return Resource{}, false
	}
	if selectors == nil {
		res.Selectors = r.unfiltered(n, selectorsPath, res.Type)
	} else if all, ok := r.selectors(selectors, selectorsPath, res.Type); ok {
		res.Selectors = all
	} else {
		return Resource{}, false
	}
	served := r.names(n, name, path, res)
	return res, served && len(r.errs) == before
}

// unfiltered stands for selectors that are missing. Upstream's page allows
// that, its program crashes.
func (r *configReader) unfiltered(n *jsonValue, path string, t DeviceType) []Selector {
	if t == AuxNetDevice {
		r.fail(n, path, "there are no selectors, want at least [{\"auxTypes\": [\"sf\"]}]")
		return nil
	}
	r.warn(Unfiltered, n, path, "there are no selectors: all devices of type %s match; write \"selectors\": [{}] if that is wanted", t)
	return []Selector{{}}
}

func (r *configReader) text(n *jsonValue, path string) string {
	if n.kind != textKind {
		r.fail(n, path, "it is %s, want a string", n.kind)
	}
	return n.text
}

func (r *configReader) deviceType(n *jsonValue, path string) DeviceType {
	word := r.text(n, path)
	if n.kind != textKind || word == "" {
		return NetDevice
	}
	var words []string
	for _, t := range DeviceTypes() {
		if string(t) == word {
			return t
		}
		words = append(words, string(t))
	}
	hint := "want one of " + strings.Join(words, ", ")
	i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, word) })
	if i >= 0 {
		hint = fmt.Sprintf("did you mean %q?", words[i])
	} else if near := errs.Nearest(word, words); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	r.fail(n, path, "there is no device type %q; %s", word, hint)
	return NetDevice
}

// names checks the resource's name against upstream's rule, and against the
// kubelet's. A resource whose registration the kubelet would refuse is left out
// (false), as upstream goes on with the others.
func (r *configReader) names(n, name *jsonValue, path string, res Resource) (served bool) {
	path = joinPath(path, "resourceName")
	if name == nil {
		r.fail(n, path, "it is missing")
		return false
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9_-]+$`).MatchString(res.Name) {
		r.fail(name, path, "%q is no name of a resource, want letters, digits, - and _", res.Name)
		return false
	}
	if why := refusedByKubelet(res); why != "" {
		r.warn(DroppedResource, name, path, "the kubelet refuses %q: %s; the resource is left out", res.FullName(), why)
		return false
	}
	if strings.Contains(res.Name, "-") {
		r.warn(Surprising, name, path, "the hyphen of %q stays in the name of the environment variable %s, which a shell cannot read", res.Name, envVariable(res))
	}
	return true
}

// refusedByKubelet returns why the kubelet does not accept the name as that of
// an extended resource; "" if it does.
func refusedByKubelet(res Resource) string {
	domain := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	switch {
	case !domain.MatchString(res.Prefix) || len("requests."+res.Prefix) > 253:
		return fmt.Sprintf("its prefix %q is no domain in lower case such as example.com", res.Prefix)
	case strings.HasSuffix(res.Prefix, "kubernetes.io") || strings.HasPrefix(res.FullName(), "requests."):
		return "kubernetes.io and requests. are its own"
	case !regexp.MustCompile(`^[a-zA-Z0-9].*[a-zA-Z0-9]$|^[a-zA-Z0-9]$`).MatchString(res.Name) || len(res.Name) > 63:
		return "want at most 63 characters, a letter or digit first and last"
	}
	return ""
}

// envVariable is the name of the environment variable with a resource's devices.
func envVariable(res Resource) string {
	return "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(res.FullName()))
}

// unique finds resources of the same name, and those whose containers could
// not tell which is which.
func (r *configReader) unique(list *jsonValue, all []Resource) {
	names, variables := map[string]Resource{}, map[string]Resource{}
	for _, res := range all {
		at, path := list.items[res.Index], fmt.Sprintf("resourceList[%d].resourceName", res.Index)
		if other, twice := names[res.FullName()]; twice {
			r.fail(at, path, "%q is the name of resourceList[%d] already; give one of them another name, or list both selectors in one resource", res.FullName(), other.Index)
			continue
		}
		names[res.FullName()] = res
		if other, twice := variables[envVariable(res)]; twice {
			r.warn(Surprising, at, path, "%q and %q (resourceList[%d]) are in the same environment variable %s: a container that has both sees one", res.FullName(), other.FullName(), other.Index, envVariable(res))
			continue
		}
		variables[envVariable(res)] = res
	}
}

// additional reads additionalInfo. Given twice for one device, the last counts.
func (r *configReader) additional(n *jsonValue, path string, t DeviceType) map[string]map[string]string {
	if n.kind != objectKind {
		r.fail(n, path, "it is %s, want an object: {\"*\": {\"key\": \"value\"}}", n.kind)
		return nil
	}
	all := map[string]map[string]string{}
	r.entries(n, path, func(key *jsonValue, value *jsonValue, path string) {
		device := key.text
		if device != "*" && !isPCIAddress(device) {
			r.warn(NoEffect, key, path, "%q is no device: want \"*\" or a PCI address such as 0000:3b:02.1%s", device, parentHint(t))
		}
		all[device] = nil
		if value.kind == nullKind {
			return
		}
		if value.kind != objectKind {
			r.fail(value, path, "it is %s, want an object of strings", value.kind)
			return
		}
		own := map[string]string{}
		r.entries(value, path, func(key, value *jsonValue, path string) {
			if value.kind != textKind && value.kind != nullKind {
				r.fail(value, path, "it is %s, want a string", value.kind)
			}
			own[key.text] = value.text
		})
		all[device] = own
	})
	return all
}

func parentHint(t DeviceType) string {
	if t == AuxNetDevice {
		return ", that of the auxiliary device's parent"
	}
	return ""
}

// entries calls take for the members of an object whose keys are free.
func (r *configReader) entries(n *jsonValue, path string, take func(key, value *jsonValue, path string)) {
	seen := map[string]*jsonValue{}
	for _, m := range n.members {
		path := fmt.Sprintf("%s[%q]", path, m.key.text)
		if earlier, twice := seen[m.key.text]; twice {
			r.duplicate(m.key, earlier, path)
		}
		seen[m.key.text] = m.key
		take(m.key, m.value, path)
	}
}
