package config

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/disk"
)

// maxCRL limits a file of revocation lists, in bytes: 100,000 revoked certificates take
// about 4 MiB.
const maxCRL = 64 << 20

// clockSkew is how far the clock of a CA may be ahead of this machine's clock.
const clockSkew = 5 * time.Minute

// The extensions of a revocation list, and of its entries, that weir supports or has a
// special error for (RFC 5280, sections 5.2 and 5.3).
var (
	oidAuthorityKey  = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidNumber        = asn1.ObjectIdentifier{2, 5, 29, 20}
	oidDelta         = asn1.ObjectIdentifier{2, 5, 29, 27}
	oidDistribution  = asn1.ObjectIdentifier{2, 5, 29, 28}
	oidReason        = asn1.ObjectIdentifier{2, 5, 29, 21}
	oidInvalidity    = asn1.ObjectIdentifier{2, 5, 29, 24}
	oidEntryIssuer   = asn1.ObjectIdentifier{2, 5, 29, 29}
	knownExtensions  = []asn1.ObjectIdentifier{oidAuthorityKey, oidNumber, oidDistribution}
	knownEntryFields = []asn1.ObjectIdentifier{oidReason, oidInvalidity}
)

// RevocationList is one certificate revocation list (RFC 5280, section 5) of a
// client_auth.crl file. It does not change.
type RevocationList struct {
	// List is the parsed list without its entries: a hundred thousand of them need ten times the memory of
	// Serials.
	List *x509.RevocationList
	// Serials are the serial numbers of revoked certificates, big endian, sorted.
	Serials []string
	// Names are the distribution points that the list is for. It covers only certificates
	// that name one of them. Empty: all.
	Names []string
	// OnlyUsers and OnlyCAs mean that the list covers only certificates of that kind.
	OnlyUsers, OnlyCAs bool
}

// Revokes returns true if the list contains the serial number of c. The issuer of c must be
// the issuer of the list.
func (r *RevocationList) Revokes(c *x509.Certificate) bool {
	_, found := slices.BinarySearch(r.Serials, string(c.SerialNumber.Bytes()))
	return found
}

// Covers returns true if the absence of c from the list means that c is not revoked. The
// issuer of c must be the issuer of the list.
func (r *RevocationList) Covers(c *x509.Certificate) bool {
	if r.OnlyUsers && c.IsCA || r.OnlyCAs && !c.IsCA {
		return false
	}
	return len(r.Names) == 0 || slices.ContainsFunc(r.Names, func(n string) bool { return slices.Contains(c.CRLDistributionPoints, n) })
}

// Expired returns true if the CA should have issued a newer list by now. A list without
// such a date never expires.
func (r *RevocationList) Expired(now time.Time) bool {
	return !r.List.NextUpdate.IsZero() && now.After(r.List.NextUpdate)
}

// Issuer is the name of the CA that signed the list, for messages.
func (r *RevocationList) Issuer() string { return r.List.Issuer.String() }

// ReadRevocationFile reads a file of revocation lists. Its error, like those of the
// functions below, is the end of a sentence that begins with the file's name.
func ReadRevocationFile(path string) ([]byte, error) {
	data, err := disk.Read(path, maxCRL)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", reason(err))
	}
	return data, nil
}

// ParseRevocationLists parses the content of a file: one list in DER, or any number in PEM.
// It returns an error for lists that are incomplete by themselves (delta and indirect
// lists), and for lists with critical extensions that weir does not support.
func ParseRevocationLists(data []byte) (all []*RevocationList, err error) {
	if !bytes.Contains(data, []byte("-----BEGIN")) {
		one, err := parseRevocationList(data)
		if err != nil {
			return nil, err
		}
		return []*RevocationList{one}, nil
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "X509 CRL" {
			continue
		}
		one, err := parseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if len(all) == 0 || bytes.Contains(data, []byte("-----BEGIN")) { // a truncated block is an error, too
		return nil, errors.New(`has no whole certificate revocation list; give one in DER, or in PEM with a line "-----BEGIN X509 CRL-----"`)
	}
	return all, nil
}

func parseRevocationList(der []byte) (*RevocationList, error) {
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, fmt.Errorf("is not a readable certificate revocation list (%w); use one in DER or PEM", err)
	}
	r := &RevocationList{List: list}
	if list.ThisUpdate.After(time.Now().Add(clockSkew)) {
		return nil, fmt.Errorf("has a revocation list of %s, which is in the future; set the clock of this machine, or of the CA", list.ThisUpdate.UTC().Format(time.RFC3339))
	}
	for _, e := range list.Extensions {
		if err := r.extension(e); err != nil {
			return nil, err
		}
	}
	for i := range list.RevokedCertificateEntries {
		e := &list.RevokedCertificateEntries[i]
		for _, x := range e.Extensions {
			switch {
			case x.Id.Equal(oidEntryIssuer):
				return nil, errIndirect
			case x.Critical && !slices.ContainsFunc(knownEntryFields, x.Id.Equal):
				return nil, fmt.Errorf("has an entry with the critical extension %s, which weir does not know", x.Id)
			}
		}
		r.Serials = append(r.Serials, string(e.SerialNumber.Bytes()))
	}
	slices.Sort(r.Serials)
	list.RevokedCertificateEntries = nil
	//lint:ignore SA1019 the old form holds the entries as well
	list.RevokedCertificates = nil
	return r, nil
}

var errIndirect = errors.New("has an indirect revocation list, which one CA makes for others; give the list that each CA signs itself")

// extension evaluates an extension of the list.
func (r *RevocationList) extension(e pkix.Extension) error {
	switch {
	case e.Id.Equal(oidDelta):
		return errors.New("has a delta list, which has only the changes since another list; give the complete list")
	case e.Id.Equal(oidDistribution):
		return r.distribution(e.Value)
	case e.Critical && !slices.ContainsFunc(knownExtensions, e.Id.Equal):
		return fmt.Errorf("has a revocation list with the critical extension %s, which weir does not know", e.Id)
	}
	return nil
}

// distribution reads which of a CA's certificates the list covers (RFC 5280, section
// 5.2.5).
func (r *RevocationList) distribution(der []byte) error {
	var idp struct {
		Point struct {
			Full     []asn1.RawValue `asn1:"optional,tag:0"`
			Relative asn1.RawValue   `asn1:"optional,tag:1"`
		} `asn1:"optional,tag:0"`
		OnlyUsers      bool           `asn1:"optional,tag:1"`
		OnlyCAs        bool           `asn1:"optional,tag:2"`
		Reasons        asn1.BitString `asn1:"optional,tag:3"`
		Indirect       bool           `asn1:"optional,tag:4"`
		OnlyAttributes bool           `asn1:"optional,tag:5"`
	}
	rest, err := asn1.Unmarshal(der, &idp)
	switch {
	case err != nil || len(rest) > 0:
		return errors.New("has a revocation list with a broken Issuing Distribution Point")
	case idp.Indirect:
		return errIndirect
	case idp.Reasons.BitLength > 0:
		return errors.New("has a revocation list that covers only some reasons of revocation; give the complete list")
	case idp.OnlyAttributes:
		return errors.New("has a revocation list for attribute certificates, which TLS does not use")
	case idp.OnlyUsers && idp.OnlyCAs:
		return errors.New("has a revocation list for no certificate at all")
	}
	r.OnlyUsers, r.OnlyCAs = idp.OnlyUsers, idp.OnlyCAs
	for _, name := range idp.Point.Full {
		if name.Class == asn1.ClassContextSpecific && name.Tag == 6 { // uniformResourceIdentifier
			r.Names = append(r.Names, string(name.Bytes))
		}
	}
	if len(r.Names) == 0 && (len(idp.Point.Full) > 0 || len(idp.Point.Relative.FullBytes) > 0) {
		return errors.New("has a revocation list for a distribution point that is not named by a URL; give the complete list")
	}
	return nil
}

// revocation checks the revocation lists of t. If a file that is already in use cannot be
// used now, that is a warning, and the lists that were read before stay in use.
func (v *draft) revocation(t *TLSPolicy) {
	authorities, _ := certificatesOf(t.ClientAuthPool)
	listed, whole := map[*x509.Certificate]bool{}, true
	for i := range t.ClientAuthCRL {
		file := &t.ClientAuthCRL[i]
		if *file == "" {
			continue // already reported
		}
		lists, err := readRevocationLists(*file)
		if err == nil {
			err = CheckSigners(lists, authorities)
		}
		switch {
		case err != nil && v.inUse.CRL != nil && v.inUse.CRL(*file):
			v.warnAt(v.places[file], "%s %v"+keptFile, v.quote(file, *file), err)
			whole = false
			continue
		case err != nil:
			v.failAt(v.places[file], "%s %v", v.quote(file, *file), err)
			whole = false
			continue
		}
		for _, l := range lists {
			known := false
			for _, ca := range authorities {
				if bytes.Equal(l.List.RawIssuer, ca.RawSubject) && l.List.CheckSignatureFrom(ca) == nil {
					listed[ca], known = true, true
				}
			}
			if !known {
				v.warnAt(v.places[file], "the list of %q has an effect only if clients send the certificate of that CA themselves, because it is not in %s", l.Issuer(), t.ClientAuthCA)
			}
			if l.Expired(time.Now()) {
				v.warnAt(v.places[file], "the list of %q expired on %s: weir refuses certificates of that CA until there is a newer list", l.Issuer(), l.List.NextUpdate.UTC().Format(time.RFC3339))
			}
		}
	}
	for _, ca := range authorities {
		if whole && len(t.ClientAuthCRL) > 0 && ca.IsCA && !listed[ca] {
			v.warnAt(v.places[&t.ClientAuthCRL], "no list is from the CA %q: weir refuses client certificates that it issued", ca.Subject.String())
		}
	}
}

func readRevocationLists(path string) ([]*RevocationList, error) {
	data, err := ReadRevocationFile(path)
	if err != nil {
		return nil, err
	}
	return ParseRevocationLists(data)
}

// CheckSigners returns an error if the issuer of a list has the name of a CA in
// authorities, but none of the CAs with this name has signed the list.
func CheckSigners(lists []*RevocationList, authorities []*x509.Certificate) error {
	for _, l := range lists {
		var wrong error
		for _, ca := range authorities {
			if !bytes.Equal(l.List.RawIssuer, ca.RawSubject) {
				continue
			}
			if wrong = l.List.CheckSignatureFrom(ca); wrong == nil {
				break
			}
		}
		if wrong != nil {
			return fmt.Errorf("has a list of %q that was not signed by the CA of this name in ca (%w); give the list that this CA publishes", l.Issuer(), wrong)
		}
	}
	return nil
}

// maxNamesOfCAs limits the names of CAs that a handshake can have, in bytes. The list of them, and
// the message around it, have lengths of 16 bits (RFC 8446, section 4.2.4; RFC 5246, section 7.4.4).
const maxNamesOfCAs = 63 << 10

// NamesFit reports whether a handshake can tell clients the names of these CAs.
func NamesFit(cas []*x509.Certificate) bool {
	size := 0
	for _, ca := range cas {
		size += 2 + len(ca.RawSubject)
	}
	return size <= maxNamesOfCAs
}

// Authorities parses a file of CA certificates in PEM that was checked before.
func Authorities(data []byte) ([]*x509.Certificate, error) { return certificatesOf(data) }
