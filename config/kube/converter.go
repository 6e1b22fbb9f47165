package kube

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/pause"
)

// Converter converts Objects into a Routing. It remembers the result of each group of
// Ingresses, and converts a group again only after one of its Ingresses, Services or Secrets was
// replaced by another object. Informers replace objects and never change them. Only one
// goroutine may use a Converter.
type Converter struct {
	// File is the configuration of the file, with the section kubernetes. It takes
	// precedence over all objects.
	File *config.Config
	// Offline means that the objects come from manifests: no replica of weir writes into the cluster.
	Offline bool

	known *knowledge // nil: the next conversion begins from scratch

	// For tests: the Ingresses that the last Convert converted; all Ingresses are one group.
	converted         int
	convertedGateways int
	together          bool
}

// knowledge is what a Converter remembers: the objects and the results.
type knowledge struct {
	*conversion // has the objects and the settings
	members     map[*networkingv1.Ingress]*member
	joints      *joints
	unclear     map[*member]bool // with events about their classes
	gateways    gatewayConverter
	users       users
	results     results
}

// users are the parts that looked an object up.
type users struct{ services, secrets, maps map[config.ObjectName][]*part }

// part is the result of one group.
type part struct {
	members  []*member
	services []config.ObjectName // that the conversion looked up; some may not exist
	secrets  []config.ObjectName
	maps     map[config.ObjectName]time.Time // ConfigMaps, and when the oldest object was created that names each; nil: none

	names    []config.ObjectName // of the Ingresses
	routes   []*config.Route
	backends []*Backend
	uses     [][]useOrder       // of the Users of each backend
	auth     []*config.Auth     // that its routes name
	policies []config.TLSPolicy // that its routes name
	served   []namedSecret
	used     map[config.ObjectName]string // see conversion.used; nil: none
	events   event.Set                    // nil: none
	gateway  *gatewayPart                 // nil: it is not the part of a Gateway
}

// lookups has the names of the Services, Secrets and ConfigMaps that a conversion asked for.
type lookups struct {
	services, secrets map[config.ObjectName]bool
	maps              map[config.ObjectName]time.Time // see part
}

func newLookups() *lookups {
	return &lookups{map[config.ObjectName]bool{}, map[config.ObjectName]bool{}, map[config.ObjectName]time.Time{}}
}

// into stores the names in a part.
func (l *lookups) into(p *part) {
	p.services, p.secrets = slices.Collect(maps.Keys(l.services)), slices.Collect(maps.Keys(l.secrets))
	if len(l.maps) > 0 {
		p.maps = l.maps
	}
}

// useOrder orders the objects that use a backend: first those with a claim that is not
// implicit, then the oldest.
type useOrder struct {
	implicit bool
	created  time.Time
}

// service is the Service of this name, or nil.
func (v *conversion) service(name config.ObjectName) *corev1.Service {
	if v.looked != nil {
		v.looked.services[name] = true
	}
	return v.services[name]
}

// secret is the Secret of this name, or nil.
func (v *conversion) secret(name config.ObjectName) *corev1.Secret {
	if v.looked != nil {
		v.looked.secrets[name] = true
	}
	return v.secrets[name]
}

// Convert converts o into a Routing. If nothing has changed since the last call, it returns
// the same Routing.
func (c *Converter) Convert(o *Objects) *Routing {
	k := c.known
	c.known = nil // after a panic, nothing half done is left
	if k == nil || k.file != c.File {
		former := k
		k = newKnowledge(c.File)
		if k.offline = c.Offline; former != nil {
			k.gateways.former = former.gateways.parts
		}
	}
	u := &updating{knowledge: k, together: c.together, dropped: map[*part]bool{}, waiting: map[*member]bool{}}
	u.take(o.ordered())
	c.convertedGateways += u.convertGateways()
	u.contestHosts()
	u.convert()
	r := u.finish()
	c.known, c.converted = k, u.converted
	return r
}

func newKnowledge(file *config.Config) *knowledge {
	v := newConversion(file)
	v.pairs, v.authorities = map[*corev1.Secret]pair{}, map[*corev1.Secret]error{}
	v.chosen, v.configured = v.namespaces(), v.findConfigured()
	return &knowledge{
		conversion: v, members: map[*networkingv1.Ingress]*member{}, joints: newJoints(v.settings.HostOwnership == config.OwnedByNamespace),
		unclear: map[*member]bool{}, users: users{map[config.ObjectName][]*part{}, map[config.ObjectName][]*part{}, map[config.ObjectName][]*part{}}, results: newResults()}
}

// updating is one Convert.
type updating struct {
	*knowledge
	together  bool
	dropped   map[*part]bool
	waiting   map[*member]bool // Ingresses that must be converted
	queue     []*member        // the same, and some that were converted already
	reclassed bool             // events about classes may have changed
	renamed   bool             // Ingresses or routes of Gateways may name other hosts
	added     []*part
	converted int
	// redoGateway converts a Gateway again; nil: weir serves none.
	redoGateway func(name config.ObjectName, old *part)
}

// take takes the objects that have changed since the last conversion. o is in order.
func (u *updating) take(o *Objects) {
	before := u.o
	u.o = o
	for old, now := range changes(before.Services, o.Services) {
		name := put(u.services, old, now)
		if !o.isSilent(old, now) {
			u.dropAll(u.users.services[name])
		}
	}
	redo := false
	for old, now := range changes(before.Secrets, o.Secrets) {
		name, silent := put(u.secrets, old, now), o.isSilent(old, now)
		replaceKey(u.pairs, old, now, silent)
		replaceKey(u.authorities, old, now, silent)
		if silent {
			u.renewServed(name, old, now)
			continue
		}
		u.dropAll(u.users.secrets[name])
		redo = redo || name == u.settings.DefaultCertificate // on which all groups depend
	}
	u.takeMaps(before)
	u.takeController(before)
	u.keyScript = u.readKeyScript()
	u.takeClasses(before)
	for old, now := range changes(before.Ingresses, o.Ingresses) {
		u.takeIngress(old, now, o.isSilent(old, now))
	}
	u.events, u.out = event.Set{}, Routing{}
	u.defaultCertificate()
	if redo {
		u.configured = u.findConfigured()
		for p := range u.results.parts {
			u.drop(p)
		}
	}
}

// takeMaps drops the parts that named a ConfigMap of which weir now knows something else.
func (u *updating) takeMaps(before *Objects) {
	for name, parts := range u.users.maps {
		old, knew := before.Maps[name]
		if now, knows := u.o.Maps[name]; now != old || knows != knew {
			u.dropAll(parts)
		}
	}
}

func sameData(a, b *corev1.ConfigMap) bool {
	return a == b || a != nil && b != nil && maps.Equal(a.Data, b.Data)
}

// takeClasses decides again which Ingresses weir serves, if that may have changed.
func (u *updating) takeClasses(before *Objects) {
	classes := !slices.Equal(before.Classes, u.o.Classes)
	if !classes && (len(u.settings.NamespaceLabels) == 0 || slices.Equal(before.Namespaces, u.o.Namespaces)) {
		return
	}
	if classes {
		clear(u.classes)
		for _, c := range u.o.Classes {
			u.classes[c.Name] = c
		}
	}
	u.chosen = u.namespaces()
	for _, m := range u.members {
		u.check(m)
	}
}

// replaceKey removes the result of a check of an old Secret. After a silent change it stays valid for the
// new Secret.
func replaceKey[T any](results map[*corev1.Secret]T, old, now *corev1.Secret, silent bool) {
	if r, known := results[old]; known && silent {
		results[now] = r
	}
	delete(results, old)
}

// renewServed replaces a Secret in the results, so that the old one is not kept.
func (u *updating) renewServed(name config.ObjectName, old, now *corev1.Secret) {
	for _, p := range u.users.secrets[name] {
		for i := range p.served {
			if p.served[i].secret == old {
				p.served[i].secret = now
			}
		}
	}
}

func (u *updating) takeIngress(old, now *networkingv1.Ingress, silent bool) {
	m := u.members[old]
	delete(u.members, old)
	switch {
	case silent:
		m.written, m.Ingress = now, u.reads(now)
		u.members[now] = m
		return
	case m != nil:
		u.setOurs(m, false)
		u.tellClass(m, nil)
	}
	if now != nil {
		m = &member{written: now, Ingress: u.reads(now)}
		u.members[now] = m
		u.check(m)
	}
}

// reads returns an Ingress as ingress-nginx reads it with its ConfigMap.
func (v *conversion) reads(i *networkingv1.Ingress) *networkingv1.Ingress {
	if v.controller == nil {
		return i
	}
	return v.controller.Apply(i)
}

// takeController reads all Ingresses again if the ConfigMap of ingress-nginx has changed.
func (u *updating) takeController(before *Objects) {
	if u.settings.IngressNginx == nil || u.controller != nil && sameData(before.Controller, u.o.Controller) {
		return
	}
	u.controller = readController(u.file, u.o.Controller)
	for _, m := range u.members {
		u.setOurs(m, false)
		m.Ingress, m.traits = u.reads(m.written), nil
		u.check(m)
	}
}

// check decides whether weir serves an Ingress.
func (u *updating) check(m *member) {
	all := u.events
	u.events = event.Set{}
	u.setOurs(m, u.isServed(m.written))
	u.tellClass(m, u.events)
	u.events = all
}

// tellClass sets the events about the class of an Ingress.
func (u *updating) tellClass(m *member, events event.Set) {
	if len(m.events)+len(events) == 0 {
		return
	}
	u.reclassed, m.events = true, events
	if delete(u.unclear, m); len(events) > 0 {
		u.unclear[m] = true
	}
}

// setOurs adds an Ingress to those that weir serves, or removes it.
func (u *updating) setOurs(m *member, ours bool) {
	switch {
	case ours && !m.ours:
		u.joints.add(m)
		u.wait(m)
	case !ours && m.ours:
		u.drop(m.part)
		delete(u.waiting, m)
		u.joints.remove(m)
	}
	u.renamed = u.renamed || m.ours != ours
	m.ours = ours
}

func (u *updating) wait(m *member) {
	u.waiting[m] = true
	u.queue = append(u.queue, m)
}

// drop drops the result of a group, whose Ingresses are then converted again; p may be nil.
func (u *updating) drop(p *part) {
	if p == nil || u.dropped[p] {
		return
	}
	u.dropped[p] = true
	for _, m := range p.members {
		m.part = nil
		u.wait(m)
	}
}

func (u *updating) dropAll(parts []*part) {
	for _, p := range parts {
		u.drop(p)
	}
}

// convert converts the groups of the Ingresses that wait.
func (u *updating) convert() {
	for i := 0; i < len(u.queue); i++ {
		if !u.waiting[u.queue[i]] {
			continue
		}
		group := u.groupOf(u.queue[i])
		for _, m := range group { // new hosts may have joined groups
			u.drop(m.part)
		}
		pause.IfDue()
		for _, m := range group {
			delete(u.waiting, m)
		}
		u.converted += len(group)
		u.added = append(u.added, u.convertGroup(group))
	}
}

// groupOf returns the group of an Ingress, in the order of names.
func (u *updating) groupOf(m *member) []*member {
	var all []*member
	if u.together {
		for _, m := range u.members {
			if m.ours {
				all = append(all, m)
			}
		}
	} else {
		all = u.joints.groupOf(m)
	}
	slices.SortFunc(all, func(a, b *member) int { return compareObjects(a, b) })
	return all
}

// convertGroup converts one group.
func (u *updating) convertGroup(members []*member) *part {
	all := make([]*networkingv1.Ingress, 0, len(members))
	for _, m := range members {
		all = append(all, m.Ingress)
	}
	p := u.conversion.group(all)
	p.members = members
	for _, m := range members {
		m.part = p
	}
	return p
}

// group converts one group of Ingresses.
func (v *conversion) group(all []*networkingv1.Ingress) *part {
	g := v.fork()
	g.looked = newLookups()
	g.decide(all)
	g.uncover()
	served := g.award()
	p := g.part()
	for name, hosts := range served {
		p.served = append(p.served, namedSecret{name, servedSecret{g.secret(name), hosts}})
	}
	p.used = g.used()
	for _, o := range g.decision.Owners {
		if o.Kind == ingressKind {
			p.names = append(p.names, o.Name)
		}
	}
	p.names = append(p.names, g.canaryNames()...)
	slices.SortFunc(p.names, compareNames)
	g.looked.into(p)
	return p
}

// fork returns a conversion with the same objects and settings, and without results.
func (v *conversion) fork() *conversion {
	g := *v
	g.guards, g.shut, g.backends, g.uses = map[config.ObjectName]*claim.Guards{}, map[claim.Match]bool{}, map[string]*Backend{}, map[string][]useOrder{}
	g.asked, g.routes, g.events = map[*claim.Owner]annotation.Settings{}, nil, event.Set{}
	g.priorities = map[*claim.Owner]int{}
	g.auth, g.entries = map[*claim.Owner]*wantedAuth{}, map[string]*config.Auth{}
	g.headers = map[*claim.Owner]*config.HeaderEdits{}
	g.proxySSL, g.hostCerts, g.policies = map[*claim.Owner]*proxySSL{}, map[*claim.Owner]*hostCerts{}, map[string]config.TLSPolicy{}
	g.moves, g.bare = map[*claim.Claim]*config.Redirect{}, nil
	return &g
}

// part returns the routes, backends and events so far.
func (v *conversion) part() *part {
	p := &part{routes: slices.Clip(v.routes)}
	if len(v.events) > 0 {
		p.events = v.events
	}
	for _, a := range v.entries {
		p.auth = append(p.auth, a)
	}
	slices.SortFunc(p.auth, compareAuth)
	p.policies = slices.SortedFunc(maps.Values(v.policies), comparePolicies)
	slices.SortStableFunc(p.routes, func(a, b *config.Route) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(v.backends)) {
		p.backends, p.uses = append(p.backends, v.backends[name]), append(p.uses, v.uses[name])
	}
	return p
}

// shareOf converts what belongs to no group: the classes, the ports for raw TCP, the Services
// that must have an endpoint on this node, and the default certificate.
func (u *updating) shareOf() (*part, *Routing) {
	v := u.fork()
	v.events = u.events // of the default certificate
	v.aboutClasses()
	v.tcp()
	v.tellController()
	used := v.used()
	for p := range u.results.using {
		for name, backend := range p.used {
			used = addUsed(used, name, backend)
		}
	}
	v.requireLocal(used)
	return v.part(), &v.out
}
